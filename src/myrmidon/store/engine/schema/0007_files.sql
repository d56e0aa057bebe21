-- oldest code: 1
-- The files that resource groups have: large values, and the code of functions. Their bytes are in the folder of the files.
CREATE TABLE IF NOT EXISTS stored_files (
    digest VARCHAR(64) NOT NULL,
    resource_group_id BIGINT NOT NULL,
    size BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    -- renewed by those who ask for the file, submit a reference to it or store it again
    used_at BIGINT NOT NULL,
    PRIMARY KEY (digest, resource_group_id)
){clustered};
CREATE INDEX IF NOT EXISTS stored_files_group ON stored_files (resource_group_id);

-- Which values refer to a file. Most values are inline and have no digest: MariaDB alone must index those too.
-- only sqlite:
CREATE INDEX IF NOT EXISTS values_digest ON "values" (digest) WHERE digest IS NOT NULL;
-- only postgresql:
CREATE INDEX IF NOT EXISTS values_digest ON "values" (digest) WHERE digest IS NOT NULL;
-- only mariadb:
CREATE INDEX IF NOT EXISTS values_digest ON "values" (digest);
-- only sqlite:
CREATE INDEX IF NOT EXISTS shared_values_digest ON shared_values (digest) WHERE digest IS NOT NULL;
-- only postgresql:
CREATE INDEX IF NOT EXISTS shared_values_digest ON shared_values (digest) WHERE digest IS NOT NULL;
-- only mariadb:
CREATE INDEX IF NOT EXISTS shared_values_digest ON shared_values (digest);
