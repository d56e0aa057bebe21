export function BotsPage() {
  return null;
}
