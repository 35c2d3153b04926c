import Link from 'next/link';

export default function Home() {
  return <Link href="/news">News</Link>;
}
