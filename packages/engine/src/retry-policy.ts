import { type Duration, durationMs } from '@holdfast/contracts'

export interface RetryPolicy {
  /** Tries in all, the first included. 1 means no retry. Default 20. At the extremes: a huge number retries for ever at `maxDelay`. */
  readonly maxAttempts?: number
  /** `exponential`: doubles from `delay` up to `maxDelay`; `fixed`: always `delay`. Default exponential. */
  readonly backoff?: 'exponential' | 'fixed'
  /** Default 1 second. */
  readonly delay?: Duration
  /** Default 5 minutes. */
  readonly maxDelay?: Duration
  /** Full jitter: a random delay between 0 and the computed one, so that what failed together does not come back together. Default true. */
  readonly jitter?: boolean
}

export type ResolvedRetryPolicy = Readonly<{
  maxAttempts: number
  backoff: 'exponential' | 'fixed'
  delayMs: number
  maxDelayMs: number
  jitter: boolean
}>

export function resolveRetryPolicy(policy: RetryPolicy = {}): ResolvedRetryPolicy {
  const maxAttempts = policy.maxAttempts ?? 20
  if (!Number.isInteger(maxAttempts) || maxAttempts < 1)
    throw new TypeError(`maxAttempts must be a whole number of at least 1, not ${maxAttempts}`)
  return {
    maxAttempts,
    backoff: policy.backoff ?? 'exponential',
    delayMs: durationMs(policy.delay ?? 1_000),
    maxDelayMs: durationMs(policy.maxDelay ?? 300_000),
    jitter: policy.jitter ?? true,
  }
}

/** Milliseconds before the next try, or undefined when `attempt` (0 for the first try) was the last one. */
export function nextDelayMs(policy: ResolvedRetryPolicy, attempt: number, random: () => number = Math.random): number | undefined {
  if (attempt + 1 >= policy.maxAttempts) return undefined
  // 2^31 is past any maxDelay that matters and still far from overflow.
  const delayMs = policy.backoff === 'fixed' ? policy.delayMs : policy.delayMs * 2 ** Math.min(attempt, 31)
  const capped = Math.min(delayMs, policy.maxDelayMs)
  return Math.round(policy.jitter ? capped * random() : capped)
}
