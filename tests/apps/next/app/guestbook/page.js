import { revalidatePath } from 'next/cache';

export const revalidate = 60;

const entries = (globalThis.entries ??= []);

async function sign(form) {
  'use server';
  entries.push(String(form.get('entry')));
  revalidatePath('/guestbook');
}

export default function Guestbook() {
  return (
    <form action={sign}>
      <p>entries: {entries.join(', ')}</p>
      <input name="entry" />
      <button>Sign</button>
    </form>
  );
}
