/** A stream's windows in words. */

import { count, milliseconds } from "./format";
import type { StreamInfo } from "./types";

export function windowText(stream: StreamInfo): string {
  const by = stream.partitioned ? ", by key" : "";
  switch (stream.window_type) {
    case "tumbling":
      return `tumbling ${milliseconds(stream.window_duration_ms)}${by}`;
    case "sliding":
      return `sliding ${milliseconds(stream.window_duration_ms)} each ${milliseconds(stream.window_slide_ms)}${by}`;
    case "session":
      return `session, gap ${milliseconds(stream.window_session_gap_ms)}${by}`;
    case "count": {
      const slide = stream.window_slide_count ? ` each ${count(stream.window_slide_count)}` : "";
      return `${count(stream.window_size_count)} messages${slide}${by}`;
    }
  }
}
