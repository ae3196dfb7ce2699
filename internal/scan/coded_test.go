package scan

import "testing"

func scanCoded(t testing.TB, r *Rules, o Options, text, coding string, size int) ([]Finding, error) {
	t.Helper()
	o.Codings = []string{coding}
	got, out, err := scanAll(t, r, o, text, size)
	if err == nil && out != text {
		t.Errorf("%s: what left is not what came: %d bytes of %d", coding, len(out), len(text))
	}
	return got, err
}
