import { Limits } from './limits.ts'

/** A rate limit of the project, by its name; with a partition, the limit holds for each of them by itself. */
export type RateLimit = string | { readonly name: string; readonly partition?: string | undefined }

/** `name` or `name:partition`, as an instance carries it, and how many tokens. Throws a TypeError for a name or weight that cannot be. */
export function rateKeyOf(limit: RateLimit | undefined, weight: number | undefined): { rateKey: string; rateWeight: number } | undefined {
  if (limit === undefined) {
    if (weight !== undefined) throw new TypeError('a weight needs a rateLimit that it is taken from')
    return undefined
  }
  const { name, partition } = typeof limit === 'string' ? { name: limit, partition: undefined } : limit
  const rateKey = partition === undefined ? name : `${name}:${partition}`
  if (
    typeof name !== 'string' ||
    name.length === 0 ||
    (typeof limit !== 'string' && name.includes(':')) ||
    rateKey.length > Limits.keyLength
  )
    throw new TypeError(
      `the name of a rate limit has no colon and, with its partition, at most ${Limits.keyLength} characters; got ${JSON.stringify(limit)}`,
    )
  const rateWeight = weight ?? 1
  if (!Number.isInteger(rateWeight) || rateWeight < 1 || rateWeight > 1_000_000_000)
    throw new TypeError(`the weight of a step is a whole number from 1 to 1,000,000,000, not ${weight}`)
  return { rateKey, rateWeight }
}
