// Runs with the published JavaScript client and nothing of this package: as story.py does.
'use strict';
const fs = require('fs');
const taskcluster = require('taskcluster-client');

const given = JSON.parse(fs.readFileSync(0, 'utf8'));
const scheduler = new taskcluster.Scheduler({baseUrl: given.url, credentials: given.credentials, retries: 0});
const graph = given.graph;

function refused(promise) {
  return promise.then(
    answer => ({answer}),
    error => ({status: error.statusCode, body: error.body, kind: error.constructor.name}));
}

async function story() {
  const told = {ping: await scheduler.ping()};
  told.created = await refused(scheduler.createTaskGraph(graph, given.document));
  if (!told.created.answer) {
    return told;
  }
  told.again = await scheduler.createTaskGraph(graph, given.document);
  told.other = await refused(
    scheduler.createTaskGraph(graph, Object.assign({}, given.document, {scopes: ['other']})));
  told.wrong = await refused(scheduler.createTaskGraph(graph + 'x', {tasks: []}));
  told.unknown = await refused(scheduler.status('unknown'));
  told.extended = await scheduler.extendTaskGraph(graph, {tasks: given.more});
  told.before = await scheduler.inspect(graph);
  fs.writeFileSync(given.go, '');
  while ((await scheduler.status(graph)).status.state === 'running') {
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  told.status = await scheduler.status(graph);
  told.info = await scheduler.info(graph);
  told.inspect = await scheduler.inspect(graph);
  told.task = await scheduler.inspectTask(graph, given.more[0].taskId);
  return told;
}

story().then(told => console.log(JSON.stringify(told)), error => {
  console.error(error);
  process.exit(1);
});
