#!/usr/bin/env node
import { main } from '@holdfast/cli'

await main()
