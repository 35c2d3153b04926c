import { cookies } from 'next/headers';

export default async function Me() {
  const name = (await cookies()).get('name')?.value ?? 'nobody';
  return <p>hello {name}</p>;
}
