package routes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/policy"
)

// TestDescribe: a description, read as a route file, makes the same routes.
func TestDescribe(t *testing.T) {
	const oauth = `
  - host: mail.example.com
    auth_scheme: oauth2
    oauth: {token_url: "https://login.example.com/token", client_id: me, refresh_token_file: /home/me/token, scopes: [mail, send], client_auth: body}
  - host: db.example.com:5432/tcp
    limits: {bytes_in: 5}
  - host: hooks.example.com
    token_env: HOOKS
    own_credentials: [X-Hook-Secret, password]
  - host: quiet.example.com
    inspect: false
  - host: trusted.example.com
    dlp: {outbound_detectors: false, inbound_detectors: false}
`
	f, err := Parse("r.yaml", []byte(example+oauth))
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Log    int           `json:"log"`
		Routes []Description `json:"routes"`
	}
	all.Log = f.Log
	for _, r := range f.Routes {
		all.Routes = append(all.Routes, Describe(r))
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("again.yaml", text)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if len(again.Routes) != len(f.Routes) || again.Log != f.Log {
		t.Fatalf("%d routes, log %d: %s", len(again.Routes), again.Log, text)
	}
	for i, r := range f.Routes {
		if got := again.Routes[i].WithRule(r.Rule()); !reflect.DeepEqual(got, r) {
			t.Errorf("route %d:\n%+v\nnot\n%+v", i, got, r)
		}
	}
}

// TestDescribeHides: a value in place of a variable's name is not repeated.
func TestDescribeHides(t *testing.T) {
	r, err := policy.ParseAllow("example.com")
	if err != nil {
		t.Fatal(err)
	}
	value := "sk-" + strings.Repeat("a1", 20)
	if r, err = r.WithOptions(policy.Options{Credential: policy.Credential{Scheme: "bearer", Env: value}}); err != nil {
		t.Fatal(err)
	}
	if d := Describe(r); d.TokenEnv == "" || strings.Contains(d.TokenEnv, value) {
		t.Errorf("token_env is %q", d.TokenEnv)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.yaml")
	if err := os.WriteFile(path, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path)
	if err != nil || f.Name != path || len(f.Routes) != 5 {
		t.Errorf("%+v, %v", f, err)
	}
	for name, path := range map[string]string{"a directory": dir, "no file": filepath.Join(dir, "none")} {
		if _, err := Load(path); err == nil {
			t.Errorf("%s is loaded", name)
		}
	}
}
