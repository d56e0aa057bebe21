-- oldest code: 1
-- The packages that a function finds: NULL for those of the bot, the digest of a stored document with requirements, or
-- name:NAME for an environment that bots offer. The digests of documents are in job_codes too, which keeps their files.
ALTER TABLE task_requests {add_column} environment VARCHAR(80);
