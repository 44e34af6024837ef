/** Who is signed in. The token stays in this tab (`sessionStorage`): gone when the tab closes, sent to no one else. */

export type Role = "admin" | "read-write" | "read-only" | "none";

const KEY = "queen.token";
const RANK: Record<Role, number> = { none: 0, "read-only": 1, "read-write": 2, admin: 3 };

class Session {
  token = $state<string | null>(sessionStorage.getItem(KEY));
  role = $state<Role>("admin");
  subject = $state<string | null>(null);
  /** Whether the broker asks for tokens at all. */
  guarded = $state(false);
  /** Set when the broker refused what we have: the words to show above the sign-in form. */
  refused = $state<string | null>(null);

  signIn(token: string): void {
    const given = token.trim().replace(/^Bearer\s+/i, "");
    sessionStorage.setItem(KEY, given);
    this.refused = null;
    this.token = given;
  }

  signOut(): void {
    sessionStorage.removeItem(KEY);
    this.token = null;
    this.subject = null;
  }

  /** Whether the role that the token carries allows what `needed` is for. The broker decides; this hides buttons. */
  may(needed: Role): boolean {
    return RANK[this.role] >= RANK[needed];
  }
}

export const session = new Session();
