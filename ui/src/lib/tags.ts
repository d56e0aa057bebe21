/** Tags that the server adds to every task. */
const ADDED = /^(pool|priority|service_account|user|authenticated|swarming\.pool\.\w+):/;

/** Tags that people gave. */
export function ownTags(tags: readonly string[]): string[] {
  return tags.filter((tag) => !ADDED.test(tag));
}

/** The tags that people gave, then those that the server has added. */
export function ownTagsFirst(tags: readonly string[]): string[] {
  return [...ownTags(tags), ...tags.filter((tag) => ADDED.test(tag))];
}
