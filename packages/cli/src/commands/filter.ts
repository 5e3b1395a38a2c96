import { InstanceStatuses, type InstanceStatus } from '@holdfast/contracts'
import type { Command } from 'commander'
import { instanceId } from '../argument.ts'
import { choice } from '../command.ts'

/** Which instances; a list and a bulk operation understand the same. */
export interface FilterOptions {
  readonly machine?: string
  readonly status?: InstanceStatus
  readonly queue?: string
  readonly correlationKey?: string
  readonly parent?: string
}

export const addFilters = (command: Command): Command =>
  command
    .option('--machine <name>', 'of this machine or job')
    .addOption(choice('--status <status>', 'in this status', InstanceStatuses))
    .option('--queue <name>', 'in this queue')
    .option('--correlation-key <key>', 'with this correlation key')
    .option('--parent <id>', 'children of this instance', instanceId)

export interface InstanceFilter {
  readonly machine?: string
  readonly status?: InstanceStatus
  readonly queue?: string
  readonly correlation_key?: string
  readonly parent_id?: string
}

/** The filter on the wire; empty when none of its options was given. */
export function filterOf({ machine, status, queue, correlationKey, parent }: FilterOptions): InstanceFilter {
  const all = { machine, status, queue, correlation_key: correlationKey, parent_id: parent }
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as InstanceFilter
}
