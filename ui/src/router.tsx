/** The addresses of the page. Each page is a file of its own that is loaded when it is first opened. */
import {
  createRootRoute,
  createRoute,
  createRouter,
  type ErrorComponentProps,
  Link,
  lazyRouteComponent,
  Outlet,
} from "@tanstack/react-router";
import { startLive } from "./api/live";
import { Button } from "./components/Button";
import { Empty, ErrorText, Loading } from "./components/Feedback";
import { Layout } from "./components/Layout";
import { parseSearch, type Search, stringifySearch } from "./lib/search";

function Crashed({ error, reset }: ErrorComponentProps) {
  return (
    <div className="mx-auto max-w-xl space-y-3 p-6">
      <h1>This page could not be shown</h1>
      <ErrorText error={error instanceof Error ? error : new Error(String(error))} />
      <div className="flex gap-2">
        <Button onClick={reset}>Try again</Button>
        <Button onClick={() => window.location.reload()}>Load the page again</Button>
      </div>
    </div>
  );
}

function NotFound() {
  return (
    <Empty title="There is no such page">
      Go to{" "}
      <Link to="/" className="text-accent">
        Home
      </Link>
      , or press Ctrl K to find a task, job or bot.
    </Empty>
  );
}

const search = (raw: Record<string, unknown>): Search => raw as Search;
const root = createRootRoute({ component: Outlet, notFoundComponent: NotFound, errorComponent: Crashed });
const framed = createRoute({
  getParentRoute: () => root,
  id: "framed",
  component: Layout,
  beforeLoad: () => startLive(),
});

const login = createRoute({
  getParentRoute: () => root,
  path: "/login",
  validateSearch: search,
  component: lazyRouteComponent(() => import("./pages/login/LoginPage"), "LoginPage"),
});
const link = createRoute({
  getParentRoute: () => root,
  path: "/auth/link",
  component: lazyRouteComponent(() => import("./pages/login/LoginPage"), "LinkPage"),
});
const home = createRoute({
  getParentRoute: () => framed,
  path: "/",
  validateSearch: search,
  component: lazyRouteComponent(() => import("./pages/home/HomePage"), "HomePage"),
});
const tasks = createRoute({
  getParentRoute: () => framed,
  path: "/tasks",
  validateSearch: search,
  component: lazyRouteComponent(() => import("./pages/tasks/TasksPage"), "TasksPage"),
});
const task = createRoute({
  getParentRoute: () => framed,
  path: "/tasks/$id",
  validateSearch: search,
  component: lazyRouteComponent(() => import("./pages/task/TaskPage"), "TaskPage"),
});
const jobs = createRoute({
  getParentRoute: () => framed,
  path: "/jobs",
  validateSearch: search,
  component: lazyRouteComponent(() => import("./pages/jobs/JobsPage"), "JobsPage"),
});
const jobName = createRoute({
  getParentRoute: () => framed,
  path: "/jobs/name/$name",
  component: lazyRouteComponent(() => import("./pages/jobs/JobNamePage"), "JobNamePage"),
});
const job = createRoute({
  getParentRoute: () => framed,
  path: "/jobs/$id",
  validateSearch: search,
  component: lazyRouteComponent(() => import("./pages/job/JobPage"), "JobPage"),
});
const jobFailures = createRoute({
  getParentRoute: () => job,
  path: "/",
  component: lazyRouteComponent(() => import("./pages/job/Failures"), "Failures"),
});
const jobGraph = createRoute({
  getParentRoute: () => job,
  path: "/graph",
  component: lazyRouteComponent(() => import("./pages/job/Graph"), "Graph"),
});
const jobTime = createRoute({
  getParentRoute: () => job,
  path: "/time",
  component: lazyRouteComponent(() => import("./pages/job/Gantt"), "Gantt"),
});
const jobTasks = createRoute({
  getParentRoute: () => job,
  path: "/tasks",
  component: lazyRouteComponent(() => import("./pages/job/JobTasks"), "JobTasks"),
});
const bots = createRoute({
  getParentRoute: () => framed,
  path: "/bots",
  validateSearch: search,
  component: lazyRouteComponent(() => import("./pages/bots/BotsPage"), "BotsPage"),
});
const bot = createRoute({
  getParentRoute: () => framed,
  path: "/bots/$id",
  component: lazyRouteComponent(() => import("./pages/bots/BotPage"), "BotPage"),
});
const queues = createRoute({
  getParentRoute: () => framed,
  path: "/queues",
  component: lazyRouteComponent(() => import("./pages/queues/QueuesPage"), "QueuesPage"),
});
const functions = createRoute({
  getParentRoute: () => framed,
  path: "/functions",
  component: lazyRouteComponent(() => import("./pages/functions/FunctionsPage"), "FunctionsPage"),
});
const functionPage = createRoute({
  getParentRoute: () => framed,
  path: "/functions/$name",
  component: lazyRouteComponent(() => import("./pages/functions/FunctionsPage"), "FunctionPage"),
});
const values = createRoute({
  getParentRoute: () => framed,
  path: "/values",
  component: lazyRouteComponent(() => import("./pages/values/ValuesPage"), "ValuesPage"),
});
const system = createRoute({
  getParentRoute: () => framed,
  path: "/system",
  component: lazyRouteComponent(() => import("./pages/system/SystemPage"), "SystemPage"),
});
const systemPart = createRoute({
  getParentRoute: () => framed,
  path: "/system/$part",
  component: lazyRouteComponent(() => import("./pages/system/SystemPage"), "SystemPage"),
});

const tree = root.addChildren([
  login,
  link,
  framed.addChildren([
    home,
    tasks,
    task,
    jobs,
    jobName,
    job.addChildren([jobFailures, jobGraph, jobTime, jobTasks]),
    bots,
    bot,
    queues,
    functions,
    functionPage,
    values,
    system,
    systemPart,
  ]),
]);

export function makeRouter() {
  return createRouter({
    routeTree: tree,
    parseSearch,
    stringifySearch,
    defaultPreload: "intent",
    defaultPendingComponent: Loading,
    defaultErrorComponent: Crashed,
    defaultNotFoundComponent: NotFound,
    scrollRestoration: true,
  });
}
