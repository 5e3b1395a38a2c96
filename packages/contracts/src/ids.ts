import { z } from 'zod'

/** A bigint of the database as a decimal string, so that nothing rounds it. */
const decimalId = z
  .string()
  .regex(/^[1-9]\d{0,18}$/, 'expected an id: a decimal number in a string')
  // Runs on texts that the pattern has refused as well, so it may not throw for them.
  .refine((text) => !/^\d{19}$/.test(text) || BigInt(text) <= 9_223_372_036_854_775_807n, 'expected an id: the number is too large')

export const InstanceIdSchema = decimalId.brand<'InstanceId'>()
export type InstanceId = z.infer<typeof InstanceIdSchema>

export type ProjectId = string & { readonly __kind: 'ProjectId' }
export type ProcessId = string & { readonly __kind: 'ProcessId' }
