export default function Members() {
  return <p>members only</p>;
}
