import { Channels } from '@holdfast/contracts'
import { expect, test } from 'vitest'

test('N23: channel names are constants that fit into the 63 bytes of an identifier; what varies travels as payload', () => {
  const names = Object.values(Channels)
  expect(new Set(names).size).toBe(names.length)
  for (const name of names) {
    expect(name).toMatch(/^holdfast_[a-z]+$/)
    expect(Buffer.byteLength(name)).toBeLessThan(64)
  }
})
