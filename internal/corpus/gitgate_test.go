package corpus

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/hostexec"
)

// TestG1Pushes: with a gate the honest pushes of the corpus arrive, and no other does.
// Without one all do, but for what git refuses by itself.
func TestG1Pushes(t *testing.T) {
	byGit := []string{"missing-objects/0.", "missing-objects/1.", "missing-objects/2.", "missing-objects/3.", "forged-packs/0.", "forged-packs/2.", "forged-packs/3.", "forged-packs/4.", "forged-packs/5.", "forged-packs/6.", "forged-packs/7.", "forged-packs/9."}
	for name, serve := range map[string]func(t *testing.T, up string) string{"a gate": gated, "no gate": ungated} {
		t.Run(name, func(t *testing.T) {
			up := t.TempDir() + "/up.git"
			tip, err := makeUpstream(up)
			if err != nil {
				t.Fatal(err)
			}
			l := &lab{ctx: t.Context(), verdicts: map[string]verdict{}}
			w := &attacker.World{Git: serve(t, up), GitTip: tip}
			chosen := choose("git-gate")
			for _, a := range chosen {
				if err := a.Control(&attacker.Env{World: w}); err != nil {
					t.Errorf("%s: %v", a.ID, err)
				}
				err := a.Try(&attacker.Env{World: w})
				if (err == nil) != (name == "no gate") && a.ID != "git-gate/missing-objects" {
					t.Errorf("%s: %v", a.ID, err)
				}
				l.verdicts[a.ID] = contained("%v", err)
			}
			if err := l.observePushes(up, chosen); err != nil {
				t.Fatal(err)
			}
			there, err := allOf(t.Context(), up)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range chosen {
				want := Contained
				honest, evil := attacker.PushMarks(a.ID)
				for i := range honest {
					open := name == "no gate" && !strings.Contains(strings.Join(byGit, " "), strings.TrimPrefix(honest[i], "honest/"))
					if open {
						want = Escaped
					}
					if !strings.Contains(there, honest[i]) || strings.Contains(there, evil[i]) != open {
						t.Errorf("%s arrived: %v, %s: %v", honest[i], strings.Contains(there, honest[i]), evil[i], strings.Contains(there, evil[i]))
					}
				}
				if v := l.verdicts[a.ID]; v.outcome != want || len(honest) < 2 {
					t.Errorf("%s is %+v, want %s", a.ID, v, want)
				}
			}
		})
	}
}

// gated serves a repository through a git gate.
func gated(t *testing.T, up string) string {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	git, err := hostexec.New(hostexec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gitgate.New(gitgate.Config{Dir: dir, Git: git, Repos: []gitgate.Repo{{Name: "app", URL: "file://" + up}}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	t.Cleanup(func() { s.Close(); g.Close() })
	return s.URL + "/app.git"
}

// ungated serves it by git alone.
func ungated(t *testing.T, up string) string {
	s := gittest.StartHTTPS(t, strings.TrimSuffix(up, "/up.git"), "")
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Roots}}
	plain := httptest.NewServer(proxy)
	t.Cleanup(plain.Close)
	return plain.URL + "/up.git"
}
