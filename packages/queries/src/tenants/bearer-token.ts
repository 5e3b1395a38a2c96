import { createHash, randomBytes } from 'node:crypto'
import type { TokenAccess } from '@holdfast/contracts'

const PREFIX: Record<TokenAccess, string> = { read_only: 'hf_ro_', read_write: 'hf_rw_', operator: 'hf_op_' }

/** What a bearer token looks like. */
export const BEARER_TOKEN: RegExp = /^hf_(?:ro|rw|op)_[A-Za-z0-9_-]{43}$/

/** A new bearer token: its access in its prefix, and 256 random bits. Only its hash is ever stored. */
export const newToken = (access: TokenAccess): string => PREFIX[access] + randomBytes(32).toString('base64url')

/** What the database keeps of it. Plain SHA-256 is enough for 256 random bits: there is nothing to guess. */
export const hashToken = (token: string): Buffer => createHash('sha256').update(token).digest()
