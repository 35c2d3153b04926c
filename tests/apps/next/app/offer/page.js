// The same for everybody, but proxy.js gives each visitor a cookie with it.
export const revalidate = 60;

export default function Offer() {
  return <p>an offer</p>;
}
