import { createContext, useContext } from "react";
import type { Schemas } from "../../api/client";

export type Job = Schemas["JobInfo"];
export const JobContext = createContext<Job | null>(null);

/** The job that the page is about. */
export function useJob(): Job {
  const job = useContext(JobContext);
  if (!job) throw new Error("This part belongs to a job's page.");
  return job;
}
