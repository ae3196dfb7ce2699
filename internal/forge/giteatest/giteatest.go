// Package giteatest runs a real Gitea for a test, on loopback, with its own database. It
// ends with the test.
package giteatest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// Variable names the environment variable with the path of a Gitea server. The folder static
// beside that has its templates and options. install.sh builds both.
const Variable = "CARBOY_TEST_GITEA"

const admin = "root-admin"

// Server is a running Gitea.
type Server struct {
	URL string // without a final slash
	API string
	SSH string // host:port

	t     testing.TB
	token string // of its administrator

	refused atomic.Pointer[string]
	names   int
}

// config is the configuration, of the folder, the port of HTTP and that of SSH. The hash for
// passwords is a fast one. Without ALLOWED_HOST_LIST no webhook reaches a test.
const config = `RUN_MODE = prod
WORK_PATH = %[1]s
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = %[2]d
ROOT_URL = http://127.0.0.1:%[2]d/
STATIC_ROOT_PATH = %[4]s
START_SSH_SERVER = true
SSH_LISTEN_HOST = 127.0.0.1
SSH_DOMAIN = 127.0.0.1
SSH_LISTEN_PORT = %[3]d
SSH_PORT = %[3]d
BUILTIN_SSH_SERVER_USER = git
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
PATH = %[1]s/gitea.db
[security]
INSTALL_LOCK = true
SECRET_KEY = not-secret
INTERNAL_TOKEN = not-secret-and-long-enough-for-a-token
PASSWORD_HASH_ALGO = pbkdf2$1000$32
[service]
DISABLE_REGISTRATION = true
[repository]
DEFAULT_BRANCH = main
[webhook]
ALLOWED_HOST_LIST = loopback
[queue]
TYPE = channel
[indexer]
ISSUE_INDEXER_TYPE = db
[actions]
ENABLED = false
[log]
MODE = file
ROOT_PATH = %[1]s/log
`

// New starts a Gitea, or skips the test where there is none.
func New(t testing.TB) *Server {
	t.Helper()
	binary := os.Getenv(Variable)
	if binary == "" && testing.Short() {
		t.Skip("without a Gitea server, -short leaves this out")
	}
	if binary == "" {
		testenv.Missing(t, "a Gitea server", "internal/forge/giteatest/install.sh DIRECTORY, then "+Variable+"=DIRECTORY/gitea")
	}
	git := testenv.Need(t, "git", "apt-get install git")
	// Not t.TempDir, which is for its owner only: Gitea refuses to run as root.
	dir, err := os.MkdirTemp("", "giteatest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(dir, "log", "gitea.log")); err == nil && t.Failed() {
			t.Logf("Gitea's log ends:\n%s", log[max(0, len(log)-8000):])
		}
		os.RemoveAll(dir)
	})
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		attr.Credential = nobody(t)
	}
	give := func(path string) {
		if u := attr.Credential; u != nil {
			if err := os.Chown(path, int(u.Uid), int(u.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	give(dir)
	s := &Server{t: t}
	ini := filepath.Join(dir, "app.ini")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(binary, append([]string{"--config", ini}, args...)...)
		cmd.Dir, cmd.SysProcAttr = dir, attr
		cmd.Env = []string{"HOME=" + dir, "PATH=" + filepath.Dir(git) + ":/usr/bin:/bin", "LANG=C.UTF-8", "GIT_CONFIG_NOSYSTEM=1"}
		return cmd
	}
	run := func(args ...string) string {
		t.Helper()
		var errs bytes.Buffer
		cmd := command(args...)
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("gitea %q: %v\n%s%s", args, err, out, errs.Bytes())
		}
		return strings.TrimSpace(string(out))
	}
	for try := 1; ; try++ {
		web, ssh := freePort(t), freePort(t)
		text := fmt.Sprintf(config, dir, web, ssh, filepath.Join(filepath.Dir(binary), "static"))
		if err := os.WriteFile(ini, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		give(ini) // Gitea writes to it
		if try == 1 {
			run("migrate")
			run("admin", "user", "create", "--admin", "--username", admin, "--password", admin+"-pw", "--email", admin+"@example.org", "--must-change-password=false")
			s.token = run("admin", "user", "generate-access-token", "--username", admin, "--token-name", "test", "--scopes", "all", "--raw")
		}
		s.URL = fmt.Sprintf("http://127.0.0.1:%d", web)
		s.API, s.SSH = s.URL+"/api/v1", fmt.Sprintf("127.0.0.1:%d", ssh)
		if s.serve(command("web")) {
			return s
		}
		if try == 3 { // another took the port, or it does not start at all
			log, _ := os.ReadFile(filepath.Join(dir, "log", "gitea.log"))
			t.Fatalf("gitea does not start:\n%s", log)
		}
	}
}

// serve starts the server and reports whether it answers. It ends with the test.
func (s *Server) serve(cmd *exec.Cmd) bool {
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	up := false
	testenv.Poll(testenv.Patience(2*time.Minute), func() bool {
		select {
		case <-ended:
			return true
		default:
		}
		res, err := http.Get(s.URL + "/api/healthz")
		if err == nil {
			res.Body.Close()
			up = res.StatusCode == http.StatusOK
		}
		return up
	})
	return up
}

func nobody(t testing.TB) *syscall.Credential {
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Password returns the password of a user.
func Password(login string) string { return login + "-password" }

// Call calls the API with a token, or with basic authentication if that is "user:password".
// out may be nil. It returns the code.
func (s *Server) Call(token, method, path string, in, out any) int {
	s.t.Helper()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			s.t.Fatal(err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, s.API+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if login, password, ok := strings.Cut(token, ":"); ok {
		req.SetBasicAuth(login, password)
	} else {
		req.Header.Set("Authorization", "token "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if res.StatusCode >= 300 {
		refused := fmt.Sprintf("%s %s: %d %s", method, path, res.StatusCode, text)
		s.refused.Store(&refused)
	}
	if out != nil && res.StatusCode < 300 {
		if err := json.Unmarshal(text, out); err != nil {
			s.t.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
	return res.StatusCode
}

// Refused returns the last request that was not answered with success, and its answer.
func (s *Server) Refused() string {
	if r := s.refused.Load(); r != nil {
		return *r
	}
	return "none"
}

// Must calls the API as the administrator. Another code than those fails the test.
func (s *Server) Must(method, path string, in, out any, codes ...int) {
	s.t.Helper()
	s.MustAs(s.token, method, path, in, out, codes...)
}

// MustAs is Must with a token.
func (s *Server) MustAs(token, method, path string, in, out any, codes ...int) {
	s.t.Helper()
	if code := s.Call(token, method, path, in, out); !slices.Contains(codes, code) {
		s.t.Fatalf("%s %s: %d, want %v", method, path, code, codes)
	}
}

// User makes users.
func (s *Server) User(logins ...string) {
	s.t.Helper()
	for _, u := range logins {
		s.Must("POST", "/admin/users", map[string]any{"username": u, "password": Password(u), "email": u + "@example.org", "must_change_password": false}, nil, http.StatusCreated)
	}
}

// Token makes a token of a user with these scopes only.
func (s *Server) Token(login string, scopes ...string) string {
	s.t.Helper()
	s.names++
	var out struct {
		SHA1 string `json:"sha1"`
	}
	s.MustAs(login+":"+Password(login), "POST", "/users/"+login+"/tokens", map[string]any{"name": "t" + strconv.Itoa(s.names), "scopes": scopes}, &out, http.StatusCreated)
	return out.SHA1
}

// Org makes an organisation with these members, in a team of their own that may read.
func (s *Server) Org(name string, members ...string) {
	s.t.Helper()
	s.Must("POST", "/orgs", map[string]any{"username": name}, nil, http.StatusCreated)
	s.Team(name, "members", map[string]string{"repo.code": "read"}, members...)
}

// Team makes a team with these members, for repositories that it is given later.
func (s *Server) Team(org, name string, units map[string]string, members ...string) {
	s.t.Helper()
	var team struct {
		ID int64 `json:"id"`
	}
	s.Must("POST", "/orgs/"+org+"/teams", map[string]any{"name": name, "permission": "read", "units_map": units}, &team, http.StatusCreated)
	for _, m := range members {
		s.Must("PUT", fmt.Sprintf("/teams/%d/members/%s", team.ID, m), nil, nil, http.StatusNoContent)
	}
}

// Repo makes a private repository of a user or an organisation with one commit on main, and
// gives access to others: login to read, write or admin.
func (s *Server) Repo(owner, name string, access map[string]string) {
	s.t.Helper()
	in := map[string]any{"name": name, "auto_init": true, "default_branch": "main", "private": true}
	if s.Call(s.token, "GET", "/orgs/"+owner, nil, nil) == http.StatusOK {
		s.Must("POST", "/orgs/"+owner+"/repos", in, nil, http.StatusCreated)
	} else {
		s.Must("POST", "/admin/users/"+owner+"/repos", in, nil, http.StatusCreated)
	}
	for login, a := range access {
		s.Must("PUT", "/repos/"+owner+"/"+name+"/collaborators/"+login, map[string]any{"permission": a}, nil, http.StatusNoContent)
	}
}

// Commit adds a commit with one file to a branch, which it makes from main if it is new, and
// returns its name.
func (s *Server) Commit(repo, branch, file, text string) string {
	s.t.Helper()
	in := map[string]any{"content": base64.StdEncoding.EncodeToString([]byte(text)), "message": "add " + file}
	if s.Call(s.token, "GET", "/repos/"+repo+"/branches/"+url.PathEscape(branch), nil, nil) == http.StatusOK {
		in["branch"] = branch
	} else {
		in["branch"], in["new_branch"] = "main", branch
	}
	var out struct {
		Commit struct {
			SHA string `json:"sha"`
		} `json:"commit"`
	}
	s.Must("POST", "/repos/"+repo+"/contents/"+file, in, &out, http.StatusCreated)
	return out.Commit.SHA
}

// Delivery is a webhook's request.
type Delivery struct {
	Header http.Header
	Body   []byte
}

// Hook makes a webhook of a repository with all events, and returns its deliveries.
func (s *Server) Hook(repo, secret string) <-chan Delivery {
	s.t.Helper()
	out := make(chan Delivery, 1000)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		out <- Delivery{r.Header, body}
	}))
	s.t.Cleanup(srv.Close)
	s.Must("POST", "/repos/"+repo+"/hooks", map[string]any{
		"type": "gitea", "active": true, "events": []string{"issues", "issue_comment", "pull_request", "push", "pull_request_review", "status"},
		"config": map[string]any{"url": srv.URL, "content_type": "json", "secret": secret},
	}, nil, http.StatusCreated)
	return out
}
