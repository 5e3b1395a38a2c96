import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from './running-system.ts'

export interface DocBlock {
  readonly page: string
  readonly text: string
  /** What it must print, as `<!-- prints: … -->` lines before it say. */
  readonly prints: readonly RegExp[]
  /** A program that the reader is told to have: `<!-- needs: psql -->`. */
  readonly needs: string | undefined
  /** The database role that runs it: `<!-- as: shop_app -->`. */
  readonly as: string | undefined
}

/** The blocks of a page in one language, in order, each with the marks on the lines before it. */
export function blocksOf(page: string, language: string): DocBlock[] {
  const text = readFileSync(join(ROOT, page), 'utf8')
  const pattern = new RegExp(`((?:<!-- \\w+: .* -->\\n)*)\`\`\`${language}\\n([\\s\\S]*?)\`\`\``, 'g')
  return [...text.matchAll(pattern)].map(([, marks = '', body = '']) => {
    const all = [...marks.matchAll(/<!-- (\w+): (.*) -->/g)].map(([, key = '', value = '']) => [key, value] as const)
    return {
      page,
      text: body.trim(),
      prints: all.flatMap(([key, value]) => (key === 'prints' ? [new RegExp(value)] : [])),
      needs: all.find(([key]) => key === 'needs')?.[1],
      as: all.find(([key]) => key === 'as')?.[1],
    }
  })
}
