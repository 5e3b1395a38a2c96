// The engines of this repository's own tests use the server of the whole run, as those of a user do with the global setup.
import { inject } from 'vitest'
import type {} from '@holdfast/testbed'

process.env['HOLDFAST_TEST_DATABASE_URL'] ??= inject('postgresUrl')
