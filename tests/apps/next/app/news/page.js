// Generated anew at most once a minute, for everybody.
export const revalidate = 60;

export default function News() {
  return <p>news of {Date.now()}</p>;
}
