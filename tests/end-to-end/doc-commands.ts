import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from './running-system.ts'

export interface DocCommand {
  readonly page: string
  readonly text: string
  /** What it must print, as `<!-- prints: … -->` lines before it say. */
  readonly prints: readonly RegExp[]
}

/** The `sh` blocks of a page, in order. */
export function commandsOf(page: string): DocCommand[] {
  const text = readFileSync(join(ROOT, page), 'utf8')
  return [...text.matchAll(/((?:<!-- prints: .* -->\n)*)```sh\n([\s\S]*?)```/g)].map(([, marks = '', body = '']) => ({
    page,
    text: body.trim(),
    prints: [...marks.matchAll(/<!-- prints: (.*) -->/g)].map(([, pattern = '']) => new RegExp(pattern)),
  }))
}
