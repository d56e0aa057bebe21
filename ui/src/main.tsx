import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, whenSignedOut } from "./api/client";
import { isTransient, setUnreachable } from "./api/live";
import { safeReturn } from "./lib/search";
import { makeRouter } from "./router";
import "./styles.css";

const queryClient = new QueryClient({
  queryCache: new QueryCache({
    onError: (error) => setUnreachable(error instanceof ApiError && error.status === 0),
    onSuccess: () => setUnreachable(false),
  }),
  defaultOptions: {
    queries: {
      retry: (failures, error) => failures < 1 && isTransient(error),
      retryDelay: 500,
      staleTime: 1000,
      refetchOnWindowFocus: true,
    },
  },
});
const router = makeRouter();

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}

whenSignedOut((reason) => {
  const { pathname, search } = window.location;
  if (pathname === "/login" || pathname.startsWith("/auth/")) return;
  const query = new URLSearchParams({ to: safeReturn(pathname + search), ended: reason });
  window.location.assign(`/login?${query}`);
});

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queryClient}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
