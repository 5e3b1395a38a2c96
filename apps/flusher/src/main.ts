import { createContext, runRole } from '@holdfast/host'
import { readEnv } from './env.ts'
import { FlusherLoop } from './flusher.loop.ts'
import { FlusherModule } from './flusher.module.ts'

await runRole({
  role: 'flusher',
  readEnv,
  build: async (resources, env) => {
    const app = await createContext(FlusherModule.with(resources, env.HOLDFAST_FLUSH_BATCH), resources.logger)
    return { app, loops: [app.get(FlusherLoop)] }
  },
})
