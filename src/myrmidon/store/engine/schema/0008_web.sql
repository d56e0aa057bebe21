-- oldest code: 1
-- Logging in to the web page.

-- A login that was begun: by a link (kind "link"), or at an identity provider. It is used once, before it expires.
-- The columns from issuer to browser_hash are for providers.
CREATE TABLE IF NOT EXISTS login_flows (
    state_hash VARCHAR(64) NOT NULL PRIMARY KEY,
    kind VARCHAR(8) NOT NULL,
    issuer VARCHAR(256),
    nonce VARCHAR(64),
    verifier VARCHAR(128),
    challenge VARCHAR(64),
    code_hash VARCHAR(64),
    browser_hash VARCHAR(64),
    identity VARCHAR(256),
    return_to VARCHAR(512) NOT NULL,
    tries INT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at BIGINT
){clustered};
CREATE INDEX IF NOT EXISTS login_flows_expiry ON login_flows (expires_at);

-- Sessions of browsers. id_hash is the digest of what the cookie holds. The columns from issuer to claim_groups are for
-- identity providers.
CREATE TABLE IF NOT EXISTS sessions (
    id_hash VARCHAR(64) NOT NULL PRIMARY KEY,
    identity VARCHAR(256) NOT NULL,
    issuer VARCHAR(256),
    subject VARCHAR(256),
    sid VARCHAR(256),
    claim_groups {longtext},
    auth_time BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    revoked_at BIGINT,
    address VARCHAR(100) NOT NULL,
    agent VARCHAR(256) NOT NULL
){clustered};
CREATE INDEX IF NOT EXISTS sessions_identity ON sessions (identity, created_at);
CREATE INDEX IF NOT EXISTS sessions_expiry ON sessions (expires_at);

-- How many tasks were submitted and ended in each minute, for charts. what is SUBMITTED or a final state.
CREATE TABLE IF NOT EXISTS activity (
    minute_at BIGINT NOT NULL,
    resource_group_id BIGINT NOT NULL,
    what VARCHAR(12) NOT NULL,
    num INT NOT NULL,
    PRIMARY KEY (minute_at, resource_group_id, what)
){clustered};

-- When output was written, as the bot saw it, for one piece of output: marks is JSON, [time, offset] each. The times of a
-- run are all different, over both streams, so they are the order of writing too. On SQLite this table is with the logs.
CREATE TABLE IF NOT EXISTS log_times (
    task_id BIGINT NOT NULL,
    run INT NOT NULL,
    first_at BIGINT NOT NULL,
    stream INT NOT NULL,
    marks {longtext} NOT NULL,
    PRIMARY KEY (task_id, run, first_at, stream)
){clustered};
