export function ValuesPage() {
  return null;
}
