import type { ErrorCode } from './error-codes.ts'

/**
 * The SQLSTATE of each refusal by the SQL functions (migrations, docs/sql.md): class HF, which neither the standard nor PostgreSQL uses. The last digit is that of the HTTP status;
 * the middle one tells apart what HTTP tells apart by the code.
 */
export const SqlStates = Object.freeze({
  invalid_instance: 'HF400',
  invalid_signal: 'HF410',
  invalid_limit: 'HF420',
  forbidden: 'HF403',
  not_found: 'HF404',
  unknown_machine: 'HF414',
  instance_conflict: 'HF409',
  payload_too_large: 'HF413',
} as const satisfies Partial<Record<ErrorCode, string>>)
