#!/usr/bin/env node
// A command is typed often and lives shortly: most of its time is the loading of its code, and a third of that the cache saves.
import { enableCompileCache } from 'node:module'

enableCompileCache?.()
const { main } = await import('@holdfast/cli')
await main()
