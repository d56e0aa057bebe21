-- oldest code: 1
-- Versions of the configuration folder, states of bot releases, sizes of named caches, counts of tasks by tag.
-- Only new tables: older code can run on this schema.

-- Every version of every file of the configuration folder that has been active.
-- Kind "folder" is the folder itself: its files, each with the position of its version.
CREATE TABLE IF NOT EXISTS config_versions (
    kind VARCHAR(128) NOT NULL,
    position BIGINT NOT NULL,
    version VARCHAR(64) NOT NULL,
    created_at BIGINT NOT NULL,
    who VARCHAR(256) NOT NULL,
    content {longtext} NOT NULL,
    PRIMARY KEY (kind, position)
){clustered};

-- The state of a bot release. Older code uses only "active" in releases.
CREATE TABLE IF NOT EXISTS release_states (
    digest VARCHAR(64) NOT NULL PRIMARY KEY,
    state VARCHAR(8) NOT NULL CHECK (state IN ('new', 'canary', 'good', 'bad')),
    offered_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    who VARCHAR(256) NOT NULL,
    why {longtext} NOT NULL
){clustered};

-- Which release each running server backs. A row that is no longer renewed belongs to a stopped server.
CREATE TABLE IF NOT EXISTS release_backers (
    server_id {id},
    digest VARCHAR(64) NOT NULL,
    renewed_at BIGINT NOT NULL
){table};

-- Bots that rejected a release after their self-test.
CREATE TABLE IF NOT EXISTS release_failures (
    digest VARCHAR(64) NOT NULL,
    bot_id VARCHAR(256) NOT NULL,
    failed_at BIGINT NOT NULL,
    PRIMARY KEY (digest, bot_id)
){clustered};

-- The 95th percentile of the size of a named cache on bots of this pool and operating system.
CREATE TABLE IF NOT EXISTS cache_hints (
    pool VARCHAR(256) NOT NULL,
    os VARCHAR(64) NOT NULL,
    name VARCHAR(128) NOT NULL,
    size BIGINT NOT NULL,
    measured_at BIGINT NOT NULL,
    PRIMARY KEY (pool, os, name)
){clustered};

-- ---------------------------------------------------------------- counting

-- Ranges of ids in which no new task is created. In a sealed one ended tasks are counted in task_tallies; "loose" lists
-- its unfinished tasks.
CREATE TABLE IF NOT EXISTS task_spans (
    first_id {id},
    until_id BIGINT NOT NULL,
    sealed INT NOT NULL,
    num_tasks INT NOT NULL,
    seq_sum BIGINT NOT NULL,
    loose {longtext} NOT NULL,
    times {longtext} NOT NULL,
    look_at BIGINT
){table};
CREATE INDEX IF NOT EXISTS task_spans_look ON task_spans (look_at);

-- Tasks by tag and state. The empty tag stands for all tasks. State DEDUPED: succeeded with the result of another task.
CREATE TABLE IF NOT EXISTS task_tallies (
    tag VARCHAR(321) NOT NULL,
    first_id BIGINT NOT NULL,
    resource_group_id BIGINT NOT NULL,
    state VARCHAR(12) NOT NULL,
    num_tasks INT NOT NULL,
    PRIMARY KEY (tag, first_id, resource_group_id, state)
){clustered};
CREATE INDEX IF NOT EXISTS task_tallies_span ON task_tallies (first_id);

-- When a server of another version than the last one started.
CREATE TABLE IF NOT EXISTS server_versions (
    at BIGINT NOT NULL PRIMARY KEY,
    version VARCHAR(64) NOT NULL
){clustered};

-- More columns of bot_events.
CREATE TABLE IF NOT EXISTS bot_event_facts (
    bot_id VARCHAR(256) NOT NULL,
    id BIGINT NOT NULL,
    address VARCHAR(40) NOT NULL,
    authenticated VARCHAR(256) NOT NULL,
    quarantined {longtext},
    maintenance {longtext},
    PRIMARY KEY (bot_id, id)
){clustered};
