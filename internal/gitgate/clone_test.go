package gitgate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/secret"
)

// ownRepository makes a repository as carboy does.
func ownRepository(t testing.TB, format string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "own")
	if err := makeRepository(dir, format); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestFetchForTheHost: over each transport carboy itself sees upstream's present branches,
// and gets their commits whole, at first and later. What it does not ask for stays away.
func TestFetchForTheHost(t *testing.T) {
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			up := newUpstreamRepo(t)
			repo, cfg := transport(t, up)
			cfg.Repos = []Repo{repo}
			g, _ := newGate(t, cfg)
			dir := ownRepository(t, "sha1")
			see := func() *Fetched {
				t.Helper()
				got, err := g.Refs(t.Context(), repo.Name, "refs/heads/trunk", "refs/heads/none", "refs/heads/trun")
				if err != nil || got.Format != "sha1" || len(got.Refs) != 1 {
					t.Fatalf("%+v %v", got, err)
				}
				return got
			}
			first := see().Refs["refs/heads/trunk"]
			if err := g.Fetch(t.Context(), repo.Name, dir, []string{first}, nil); err != nil {
				t.Fatal(err)
			}
			w := filepath.Join(filepath.Dir(up), "w")
			write(t, w+"/b.txt", "more\n")
			git(t, w, "add", ".")
			git(t, w, "commit", "-qm", "two")
			git(t, w, "push", "-q", up, "trunk", "trunk:refs/heads/other")
			second := see().Refs["refs/heads/trunk"]
			for range 2 {
				if err := g.Fetch(t.Context(), repo.Name, dir, []string{second, first}, []string{first}); err != nil {
					t.Fatal(err)
				}
			}
			if got := git(t, dir, "rev-list", "--count", "--objects", second); got != "6\n" {
				t.Errorf("%s objects", got)
			}
			git(t, dir, "fsck", "--strict", second)
			if refs := git(t, dir, "for-each-ref"); refs != "" {
				t.Error(refs)
			}
			packs, _ := filepath.Glob(dir + "/objects/pack/*.pack")
			if len(packs) != 2 {
				t.Errorf("%q", packs)
			}
			if err := g.Fetch(t.Context(), repo.Name, dir, []string{strings.Repeat("12", 20)}, nil); err == nil {
				t.Error("what upstream does not have came")
			}
			if _, err := g.Refs(t.Context(), repo.Name, "refs/heads/../x"); err == nil {
				t.Error("a reference upward")
			}
			if _, err := g.Refs(t.Context(), "another", "refs/heads/trunk"); err == nil {
				t.Error("a repository that is not declared")
			}
		})
	}
}

// TestHostileUpstreamsForTheHost: whatever upstream does, carboy's own fetch ends soon with
// an error, and leaves neither a reference nor a setting in its repository.
func TestHostileUpstreamsForTheHost(t *testing.T) {
	t.Parallel()
	for name, c := range hostileUpstreams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewTLSServer(http.HandlerFunc(c.serve))
			t.Cleanup(s.Close)
			g, _ := newGate(t, Config{Repos: []Repo{{Name: "app", URL: s.URL + "/app", Token: secret.NewString("the-token")}}, Roots: roots(s), Limits: Bounds{Idle: 300 * time.Millisecond, Advert: 1 << 20, Fetch: 4 << 20}})
			dir := ownRepository(t, "sha1")
			before := filesOf(t, dir)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := g.Refs(ctx, "app", "refs/heads/a")
			if err == nil {
				err = g.Fetch(ctx, "app", dir, []string{someID}, nil)
			}
			if err == nil || ctx.Err() != nil || strings.ContainsAny(err.Error(), "\x1b\u202e") || strings.Contains(err.Error(), "the-token") {
				t.Errorf("%v", err)
			}
			if after := filesOf(t, dir); !slices.Equal(before, after) {
				t.Errorf("%q", after)
			}
		})
	}
}

// filesOf lists the files below dir, but for packs that git has not accepted.
func filesOf(t testing.TB, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(d.Name(), "tmp_pack") {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
