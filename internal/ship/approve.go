package ship

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/plan"
)

// ApproveOptions configures Approve.
type ApproveOptions struct {
	Plans       [][]byte
	Approver    string // as in allowed_signers
	Purpose     string // one line
	Destructive bool   // approve destructive changes too
	// Key is the file of a private key, or of a public key whose private key the SSH agent
	// holds.
	Key string
}

// Approve signs plans of one module and commit. The caller has shown them to the person.
// Approve does not check whether their hosts are allowed.
func (e *Engine) Approve(ctx context.Context, o ApproveOptions) (approval.Signed, error) {
	var digests []string
	var one *plan.Plan
	for _, b := range o.Plans {
		p, digest, err := plan.Decode(b)
		if err != nil {
			return approval.Signed{}, &Error{Mismatch, "", err, "make a new plan"}
		}
		if one == nil {
			one = p
		}
		switch {
		case p.Module != one.Module || p.Commit != one.Commit:
			return approval.Signed{}, fail(Refused, "", "approve them one after another", "plans of several modules or commits")
		case p.Destructive() && !o.Destructive:
			return approval.Signed{}, fail(Destructive, p.Host.Name, "look at it again; --destructive approves that too", "the plan destroys something")
		}
		digests = append(digests, digest)
	}
	if one == nil {
		return approval.Signed{}, fail(Refused, "", "", "no plan to approve")
	}
	signer, done, err := e.Keys.Signer(ctx, o.Key)
	if err != nil {
		return approval.Signed{}, err
	}
	defer done()
	s, err := approval.Sign(approval.New(digests, one.Commit, one.Module, o.Approver, o.Purpose, o.Destructive, time.Now()), signer)
	if err != nil {
		return approval.Signed{}, err
	}
	return s, e.auditEvent(ctx, audit.Approval, audit.Allowed, one, digests[0], o.Approver+" with "+ssh.FingerprintSHA256(signer.PublicKey()), o.Purpose)
}

// Counts returns nil if an approval counts on this machine, whose allowed_signers names the
// key and the approver, or why not.
func (e *Engine) Counts(ctx context.Context, s approval.Signed) error {
	v, err := e.verifier()
	if err != nil {
		return err
	}
	_, err = v.Verify(ctx, s, time.Now())
	return err
}

// Example writes commented example files: hosts.yaml and allowed_signers into the
// configuration directory and, if id is not empty, the files of that module into the
// repository. It keeps existing files, and returns the paths of those it wrote, sorted.
func (e *Engine) Example(id string) ([]string, error) {
	files := map[string]string{filepath.Join(e.Config, hosts.FileName): exampleHosts, filepath.Join(e.Config, approval.SignersFile): exampleSigners}
	if id != "" {
		if err := validModule(id); err != nil {
			return nil, err
		}
		files[filepath.Join(e.Repo, "modules", id, "module.yaml")] = strings.ReplaceAll(exampleModule, "ID", id)
		files[filepath.Join(e.Repo, "modules", id, "compose.yaml")] = strings.ReplaceAll(exampleCompose, "ID", id)
		// Never write through a link in the repository.
		for _, d := range []string{"modules", "modules/" + id} {
			if fi, err := os.Lstat(filepath.Join(e.Repo, d)); err == nil && !fi.IsDir() {
				return nil, fail(Refused, "", "remove it", "%s is not a directory", filepath.Join(e.Repo, d))
			}
		}
	}
	var wrote []string
	for name, text := range files {
		if _, err := os.Lstat(name); err == nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return wrote, err
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return wrote, err
		}
		_, err = f.WriteString(text)
		if cerr := f.Close(); err != nil || cerr != nil {
			return wrote, fmt.Errorf("%s: not written: %w", name, errors.Join(err, cerr))
		}
		wrote = append(wrote, name)
	}
	slices.Sort(wrote)
	return wrote, nil
}

const exampleHosts = `# Which machines carboy may change. It lies with you, and never in a repository.
hosts: {}
#  prod1:
#    address: prod1.example.org
#    port: 22
#    user: deploy                  # may run docker, and is not root
#    host_keys:                    # ssh-keyscan -t ed25519 prod1.example.org; compare with the machine's own
#      - ssh-ed25519 AAAA...
#    key: /home/me/.ssh/id_deploy  # without this line: the SSH agent
#    jump: bastion                 # another entry, through which it is reached
#    docker_host: unix:///run/user/1000/docker.sock   # without this line: its usual one
#    allowed_roots: [/srv]         # remote_root of a module lies in one of them
#    sacred_paths: [/srv/db]       # and never here
#    approvals: 1                  # how many people must have signed
#    undo_without_approval: false  # true: the last apply may be undone at once
#    reviews: team                 # an entry of reviews, in this file: docs/ship.md shows one
#    apply: false                  # true: carboy may change this host
`

const exampleSigners = `# Who may approve plans, in the form that ssh-keygen(1) calls allowed signers:
# alice@example.org namespaces="carboy-ship@carboy.dev" ssh-ed25519 AAAA...
`

const exampleModule = `# docs/ship.md explains each line.
apiVersion: carboy.dev/v1
kind: Module
metadata: {id: ID}
spec:
  host: prod1                      # an entry of the operator's hosts.yaml
  # waves: [[canary], [a, b]]      # or several, wave after wave
  runtime:
    orchestrator: docker-compose
    compose_file: compose.yaml     # beside this file
    compose_service: ID
    remote_root: /srv/ID           # the project directory on the host
    sync: none                     # files: what lies in files/ goes to remote_root
    # stable_for: 30s              # how long it must run without a restart; without a healthcheck 30s
    health_timeout: 2m
    destructive: []                # actions that need the word destructive: recreate, update, ...
`

const exampleCompose = `services:
  ID:
    image: registry.example.org/ID@sha256:0000000000000000000000000000000000000000000000000000000000000000
    restart: unless-stopped
    healthcheck:
      test: ["CMD", "/ID", "check"]
      interval: 5s
`
