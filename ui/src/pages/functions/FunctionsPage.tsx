export function FunctionsPage() {
  return null;
}
export function FunctionPage() {
  return null;
}
