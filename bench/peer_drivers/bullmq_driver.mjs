// Runs no-op jobs on BullMQ: reads one JSON request per line, answers with the seconds it took.
// Usage: node bullmq_driver.mjs REDIS_PORT, in a folder where the package bullmq is installed.
import { createInterface } from "node:readline";
import { Queue, Worker } from "bullmq";

const connection = { host: "127.0.0.1", port: Number(process.argv[2]) };
const queue = new Queue("bench", { connection });
let left = 0;
let finished = () => {};
const workers = [0, 1].map(() => new Worker("bench", async (job) => job.data.x, { connection, concurrency: 8 }));
for (const worker of workers) {
  await worker.waitUntilReady();
  worker.on("completed", () => {
    left -= 1;
    if (left === 0) finished();
  });
}

async function many(n) {
  left = n;
  const end = new Promise((resolve) => {
    finished = resolve;
  });
  for (let start = 0; start < n; start += 1000) {
    const size = Math.min(1000, n - start);
    await queue.addBulk(Array.from({ length: size }, (_, i) => ({ name: "noop", data: { x: start + i } })));
  }
  await end;
}

await many(500);
console.log(JSON.stringify({ ready: "bullmq" }));
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  const start = process.hrtime.bigint();
  await many(request.n);
  console.log(JSON.stringify({ seconds: Number(process.hrtime.bigint() - start) / 1e9, times: null }));
}
process.exit(0);
