import { expect, test } from 'vitest'
import { InstanceStatuses, isSettled, isTerminal, TerminalStatuses, transitions } from '../src/index.ts'

test('nothing leaves a terminal status but a retry by a person', () => {
  for (const status of TerminalStatuses) {
    expect(isTerminal(status)).toBe(true)
    const reachable = InstanceStatuses.filter((to) => transitions[status][to])
    expect(reachable).toEqual(status === 'done' ? [] : ['runnable'])
  }
})

test('every live status can be reached, and be left', () => {
  for (const status of InstanceStatuses.filter((each) => !isTerminal(each))) {
    expect(InstanceStatuses.some((from) => transitions[from][status]) || status === 'scheduled').toBe(true)
    expect(InstanceStatuses.some((to) => transitions[status][to])).toBe(true)
  }
})

test('only an executing instance ends by itself', () => {
  for (const status of InstanceStatuses) expect(transitions[status].done || transitions[status].failed).toBe(status === 'executing')
})

test('settled is what ends or waits for something outside', () => {
  expect(InstanceStatuses.filter(isSettled)).toEqual(['awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled'])
})
