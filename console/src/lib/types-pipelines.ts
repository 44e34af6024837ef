/** The same about pipelines. */

export interface PlanNode {
  name: string;
  kind: string;
  where: string;
  inputs: string[];
  details: Record<string, string>;
  on_error: string;
  state: boolean;
  schema: string | null;
}
export interface PipelineRun {
  instance: string;
  engine: string;
  state: "running" | "stopped" | "failed" | "lost";
  error: string | null;
  checkpoint: string | null;
  startedAt: string;
  reportedAt: string;
  stats: Record<string, number>;
}
export interface PipelineInfo extends PipelineRun {
  name: string;
}
export interface Batch {
  ended: number;
  records: number;
  seconds: number;
}
export interface Inside {
  toldAt: string | null;
  key: string | null;
  inside: {
    batches: Batch[];
    samples: Record<string, string[]>;
    checkpoints: { id: string; committedAt: string; clean: boolean }[];
    state: { key: string; entries: Record<string, unknown>[] } | null;
    error: string | null;
  };
}
export interface PipelinePoint {
  time: string;
  messagesPerSecond: number | null;
  latencyP50Ms: number | null;
  latencyP99Ms: number | null;
  watermarkLagSeconds: number | null;
  queueDepth: number | null;
  errors: number | null;
  late: number | null;
  stateRows: number | null;
}
export interface PipelineDetail extends PipelineInfo {
  plan: { name: string; fingerprint: string; bounded: boolean; nodes: PlanNode[] } | null;
  runs: PipelineRun[];
  series: PipelinePoint[];
}
