import { z } from 'zod'

const projectName = z
  .string()
  .regex(/^[a-z0-9][a-z0-9_-]{0,62}$/, 'expected 1 to 63 lower-case letters, digits, - or _, starting with a letter or a digit')

export const Project = z.strictObject({ name: projectName, suspended: z.boolean(), created_at: z.string() }).meta({ id: 'Project' })
export type Project = z.infer<typeof Project>

export const CreateProjectRequest = z.strictObject({ name: projectName }).meta({ id: 'CreateProjectRequest' })
export type CreateProjectRequest = z.infer<typeof CreateProjectRequest>
export const ProjectList = z.strictObject({ projects: z.array(Project) }).meta({ id: 'ProjectList' })
export type ProjectList = z.infer<typeof ProjectList>

export const TokenAccesses = Object.freeze(['read_only', 'read_write', 'operator'] as const)
export type TokenAccess = (typeof TokenAccesses)[number]

export const IssueCredentialRequest = z
  .strictObject({ access: z.enum(['read_only', 'read_write']), label: z.string().min(1).max(200).optional() })
  .meta({ id: 'IssueCredentialRequest' })
export type IssueCredentialRequest = z.infer<typeof IssueCredentialRequest>
export const IssuedCredential = z
  .strictObject({
    id: z.string(),
    access: z.enum(['read_only', 'read_write']),
    token: z.string().describe('Shown once; only its SHA-256 is stored.'),
  })
  .meta({ id: 'IssuedCredential' })
export type IssuedCredential = z.infer<typeof IssuedCredential>
export const Credential = z
  .strictObject({
    id: z.string(),
    access: z.enum(['read_only', 'read_write']),
    label: z.string().nullable(),
    created_at: z.string(),
    revoked_at: z.string().nullable(),
  })
  .meta({ id: 'Credential' })
export type Credential = z.infer<typeof Credential>
export const CredentialList = z.strictObject({ credentials: z.array(Credential) }).meta({ id: 'CredentialList' })
export type CredentialList = z.infer<typeof CredentialList>

export const QueueState = z.strictObject({ queue: z.string(), paused: z.boolean() }).meta({ id: 'QueueState' })
export type QueueState = z.infer<typeof QueueState>

export const ProcessList = z
  .strictObject({
    processes: z.array(
      z.strictObject({
        id: z.string(),
        role: z.string(),
        host: z.string(),
        pid: z.int(),
        version: z.string(),
        started_at: z.string(),
        silent_ms: z.int().describe('Since its last heart-beat.'),
      }),
    ),
  })
  .meta({ id: 'ProcessList' })
export type ProcessList = z.infer<typeof ProcessList>
