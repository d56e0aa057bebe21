-- oldest code: 1
-- What a fleet is told: versions of the settings folder, the fate of bot zips, sizes of named caches.
-- Only additions, and code of before runs on them: it reads none of these tables.

-- Every version of every file of the settings folder that was ever in force, oldest first.
-- Kind "folder" is the whole: a list of its files, each with the position of the version that belongs to it.
CREATE TABLE IF NOT EXISTS config_versions (
    kind VARCHAR(128) NOT NULL,
    position BIGINT NOT NULL,
    version VARCHAR(64) NOT NULL,
    created_at BIGINT NOT NULL,
    who VARCHAR(256) NOT NULL,
    content {longtext} NOT NULL,
    PRIMARY KEY (kind, position)
){clustered};

-- What is known of a bot zip besides its bytes. "active" in releases stays the word of code of before.
CREATE TABLE IF NOT EXISTS release_states (
    digest VARCHAR(64) NOT NULL PRIMARY KEY,
    state VARCHAR(8) NOT NULL CHECK (state IN ('new', 'canary', 'good', 'bad')),
    offered_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    who VARCHAR(256) NOT NULL,
    why {longtext} NOT NULL
){clustered};

-- Which zip each server would hand out; one that is not renewed is a server's that is gone.
CREATE TABLE IF NOT EXISTS release_backers (
    server_id {id},
    digest VARCHAR(64) NOT NULL,
    renewed_at BIGINT NOT NULL
){table};

-- Bots that tried a zip and found that it was not fine.
CREATE TABLE IF NOT EXISTS release_failures (
    digest VARCHAR(64) NOT NULL,
    bot_id VARCHAR(256) NOT NULL,
    failed_at BIGINT NOT NULL,
    PRIMARY KEY (digest, bot_id)
){clustered};

-- How large a named cache gets: of 100 bots of this pool and system, 95 have no more.
CREATE TABLE IF NOT EXISTS cache_hints (
    pool VARCHAR(256) NOT NULL,
    os VARCHAR(64) NOT NULL,
    name VARCHAR(128) NOT NULL,
    size BIGINT NOT NULL,
    measured_at BIGINT NOT NULL,
    PRIMARY KEY (pool, os, name)
){clustered};

-- ---------------------------------------------------------------- counting

-- Stretches of ids in which no task is born any more. A sealed one is tallied, but for its loose tasks.
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

-- The empty tag is that of all tasks. State DEDUPED: succeeded without a run.
CREATE TABLE IF NOT EXISTS task_tallies (
    tag VARCHAR(321) NOT NULL,
    first_id BIGINT NOT NULL,
    resource_group_id BIGINT NOT NULL,
    state VARCHAR(12) NOT NULL,
    num_tasks INT NOT NULL,
    PRIMARY KEY (tag, first_id, resource_group_id, state)
){clustered};
CREATE INDEX IF NOT EXISTS task_tallies_span ON task_tallies (first_id);

-- Which version of the server came to work when, one row for every change.
CREATE TABLE IF NOT EXISTS server_versions (
    at BIGINT NOT NULL PRIMARY KEY,
    version VARCHAR(64) NOT NULL
){clustered};

-- What a bot was like when something happened to it, besides what bot_events says.
CREATE TABLE IF NOT EXISTS bot_event_facts (
    bot_id VARCHAR(256) NOT NULL,
    id BIGINT NOT NULL,
    address VARCHAR(40) NOT NULL,
    authenticated VARCHAR(256) NOT NULL,
    quarantined {longtext},
    maintenance {longtext},
    PRIMARY KEY (bot_id, id)
){clustered};
