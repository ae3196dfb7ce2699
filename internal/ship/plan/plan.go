// Package plan defines the document that says what an apply will do to one service on one
// host. People read it, an approval names it by its digest, and apply does only what it
// says.
//
// A plan has one encoding. [Decode] rejects bytes that [Plan.Encode] would not write, so
// two plans with the same content have the same digest.
//
// Start reading at [Plan].
package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/ship/module"
)

const (
	// Schema identifies the document's format.
	Schema = "carboy.dev/ship-plan/v1"
	// MaxSize bounds an encoded plan, in bytes.
	MaxSize = 2 << 20
	// MaxFiles bounds the number of synced files.
	MaxFiles = 256
	// DefaultLife bounds the time until a plan must be applied. MaxLife bounds settings
	// of it.
	DefaultLife = 24 * time.Hour
	MaxLife     = 31 * 24 * time.Hour
)

// Operation names the action of a whole plan. The zero value is invalid.
type Operation string

// The operations.
const (
	Apply    Operation = "apply"
	Rollback Operation = "rollback"
	Removal  Operation = "remove" // the service goes away
)

// Actions on a service or file. A module may declare those in [module.Actions] destructive.
const (
	none = "none"
	// Adopt is for what is as the commit says, though no record has it: somebody put it
	// there by hand. Applying watches and records it.
	Adopt    = "adopt"
	Create   = "create"
	Update   = "update"
	Recreate = "recreate"
	Remove   = "remove"
)

// Plan says what an apply will do to one service on one host.
type Plan struct {
	Schema  string    `json:"schema"`
	Kind    Operation `json:"kind"`
	Module  string    `json:"module"`
	Host    Host      `json:"host"`
	Wave    int       `json:"wave"` // from 1; waves are applied in order
	Commit  string    `json:"commit"`
	Clean   bool      `json:"clean"` // the work tree had no changes
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"` // who made it; not who approves

	Source  Source   `json:"source"`
	Target  Target   `json:"target"`
	Seen    Seen     `json:"seen"`
	Changes []Change `json:"changes"`
	// Previous is the state that a failed apply goes back to.
	Previous Previous `json:"previous"`
	// Undoes is the host's last job, if this plan is a rollback of it.
	Undoes string `json:"undoes,omitempty"`
}

// Host is the entry of hosts.yaml when the plan was made.
type Host struct {
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Port    int      `json:"port"`
	User    string   `json:"user"`
	Keys    []string `json:"host_keys"` // fingerprints
}

// Source lists the files of the commit from which the plan was made.
type Source struct {
	Module  File   `json:"module"`
	Compose File   `json:"compose"`
	Files   []File `json:"files"` // in the module's directory files/, by their paths there
}

// File identifies the content of one file.
type File struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Exec   bool   `json:"executable,omitempty"`
}

// Target is the state after the apply.
type Target struct {
	Project        string   `json:"project"`
	Service        string   `json:"service"`
	Root           string   `json:"remote_root"`
	Binds          []string `json:"binds"`
	Volumes        []string `json:"volumes,omitempty"` // Docker volumes, by their names in the compose file
	Image          string   `json:"image"`
	ImageID        string   `json:"image_id"` // "-": apply pulls it, by the digest in Image
	ConfigHash     string   `json:"config_hash"`
	ComposeVersion string   `json:"compose_version"`
	Absent         bool     `json:"absent"` // the service is removed
	StableFor      int      `json:"stable_for_seconds"`
	StableChecked  int      `json:"stable_for_checked_seconds,omitempty"` // StableFor of a service with a healthcheck
	Health         int      `json:"health_timeout_seconds"`
}

// Seen is the state of the host when the plan was made; see [Observe].
type Seen struct {
	Text   string `json:"text"` // as the host sent it
	SHA256 string `json:"sha256"`
}

// Change is one difference between Seen and Target.
type Change struct {
	What        string `json:"what"` // compose.service.X or file.PATH
	Action      string `json:"action"`
	From        string `json:"from"`
	To          string `json:"to"`
	Destructive bool   `json:"destructive"`
	Why         string `json:"why,omitempty"`
}

// Previous is the state that a rollback restores.
type Previous struct {
	// State is none (there is no service), known, or unknown: a service runs, but carboy
	// does not know its compose file, so it cannot restore it.
	State   string `json:"state"`
	Job     string `json:"job,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Compose string `json:"compose,omitempty"` // text of the compose file
	Image   string `json:"image,omitempty"`
	ImageID string `json:"image_id,omitempty"`
	Ran     bool   `json:"ran"` // it ran, and was not unhealthy
	// Unrecorded is true if what runs is not what was applied last, by any record.
	Unrecorded bool `json:"unrecorded,omitempty"`
}

// States of Previous.
const (
	PreviousNone    = "none"
	PreviousKnown   = "known"
	PreviousUnknown = "unknown"
)

var (
	sha     = module.NewPattern(`^[0-9a-f]{64}$`)
	commit  = module.NewPattern(`^[0-9a-f]{40}$`)
	imageID = module.NewPattern(`^(-|sha256:[0-9a-f]{64})$`)
	// image matches image references, more strictly than Docker does.
	image = module.NewPattern(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,400}$`)
)

// ValidCommit reports whether s is the full SHA-1 id of a commit.
func ValidCommit(s string) bool { return commit.MatchString(s) }

// ValidImage reports whether s can be a reference of an image.
func ValidImage(s string) bool { return image.MatchString(s) }

// Encode returns the plan's only valid encoding. It returns an error for an invalid plan.
func (p *Plan) Encode() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(p); err != nil {
		return nil, err
	}
	if b.Len() > MaxSize {
		return nil, fmt.Errorf("plan: more than %d bytes", MaxSize)
	}
	return b.Bytes(), nil
}

// Digest returns the SHA-256 of b in hexadecimal digits. It identifies an encoded plan.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Decode decodes a plan and returns it with its digest.
func Decode(b []byte) (*Plan, string, error) {
	if len(b) > MaxSize {
		return nil, "", fmt.Errorf("plan: more than %d bytes", MaxSize)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	p := &Plan{}
	if err := d.Decode(p); err != nil {
		return nil, "", fmt.Errorf("plan: %w", err)
	}
	again, err := p.Encode()
	if err != nil {
		return nil, "", err
	}
	if !bytes.Equal(again, b) {
		return nil, "", errors.New("plan: was edited or formatted since carboy wrote it")
	}
	return p, Digest(b), nil
}

// check returns an error if the plan is one that carboy would not make.
func (p *Plan) check() error {
	for _, check := range []func() error{p.checkHead, p.checkTarget, p.checkSource} {
		if err := check(); err != nil {
			return err
		}
	}
	return errors.Join(p.checkPrevious(), p.checkChanges())
}

func (p *Plan) checkHead() error {
	switch {
	case p.Schema != Schema:
		return fmt.Errorf("schema: %.80q is not %s", p.Schema, Schema)
	case p.Kind != Apply && p.Kind != Rollback && p.Kind != Removal:
		return fmt.Errorf("kind: %.80q is not known", p.Kind)
	case !module.ValidID(p.Module):
		return fmt.Errorf("module: %.80q is no name", p.Module)
	case !module.ValidHost(p.Host.Name) || len(p.Host.Keys) == 0:
		return fmt.Errorf("host: %.80q has no name or keys", p.Host.Name)
	case !module.ValidAddress(p.Host.Address) || !module.ValidUser(p.Host.User) || p.Host.Port < 1 || p.Host.Port > 65535:
		return fmt.Errorf("host: %.80q, port %d and user %.80q are not a way to a machine", p.Host.Address, p.Host.Port, p.Host.User)
	case !commit.MatchString(p.Commit):
		return errors.New("commit: not 40 hexadecimal digits")
	case p.Wave < 1 || p.Wave > module.MaxWaves:
		return errors.New("wave: out of bounds")
	case !p.Expires.After(p.Created):
		return errors.New("expires: not after created")
	case p.Expires.Sub(p.Created) > MaxLife:
		return fmt.Errorf("expires: more than %v after created", MaxLife)
	}
	return nil
}

func (p *Plan) checkTarget() error {
	t := &p.Target
	switch {
	case !module.ValidProject(t.Project) || !module.ValidService(t.Service):
		return errors.New("target: project or service is no name")
	case module.Absolute(t.Root) != "":
		return fmt.Errorf("target.remote_root: %s", module.Absolute(t.Root))
	case p.Kind == Removal && !t.Absent:
		return errors.New("target: a removal that leaves the service there")
	case t.StableFor < 1 || t.StableChecked < 0 || t.StableChecked > t.StableFor || t.Health <= t.StableFor || t.Health > int(module.MaxWatch/time.Second):
		return errors.New("target: times out of bounds")
	case !t.Absent && (!image.MatchString(t.Image) || !imageID.MatchString(t.ImageID) || !sha.MatchString(t.ConfigHash)):
		return errors.New("target: no image or configuration")
	}
	for _, b := range t.Binds {
		if module.Absolute(b) != "" || b != t.Root && !strings.HasPrefix(b, t.Root+"/") {
			return fmt.Errorf("target.binds: %.200q lies outside of remote_root", b)
		}
	}
	for _, v := range t.Volumes {
		if !module.ValidService(v) {
			return fmt.Errorf("target.volumes: %.200q is no name", v)
		}
	}
	return nil
}

func (p *Plan) checkSource() error {
	if p.Seen.SHA256 != Digest([]byte(p.Seen.Text)) {
		return errors.New("seen: the digest is another text's")
	}
	if len(p.Source.Files) > MaxFiles {
		return errors.New("source.files: too many")
	}
	for _, f := range slices.Concat([]File{p.Source.Module, p.Source.Compose}, p.Source.Files) {
		if module.Relative(f.Path) != "" || !sha.MatchString(f.SHA256) || f.Size < 0 {
			return fmt.Errorf("source: %.200q is not a file of a repository", f.Path)
		}
	}
	return nil
}

func (p *Plan) checkPrevious() error {
	v := &p.Previous
	switch v.State {
	case PreviousNone, PreviousUnknown:
		if *v != (Previous{State: v.State}) {
			return errors.New("previous: more than its state")
		}
	case PreviousKnown:
		if !image.MatchString(v.Image) || v.ImageID == "-" || !imageID.MatchString(v.ImageID) || v.Compose == "" || !commit.MatchString(v.Commit) {
			return errors.New("previous: no image, file or commit")
		}
	default:
		return fmt.Errorf("previous.state: %.80q is not known", v.State)
	}
	return nil
}

// checkChanges checks that all changes are of the plan's service or its files.
func (p *Plan) checkChanges() error {
	for _, c := range p.Changes {
		file, isFile := strings.CutPrefix(c.What, "file.")
		switch {
		case c.What == "compose.service."+p.Target.Service:
			if !slices.Contains(module.Actions, c.Action) {
				return fmt.Errorf("changes: %.80q is no action", c.Action)
			}
		case isFile && slices.ContainsFunc(p.Source.Files, func(f File) bool { return f.Path == file }):
		default:
			return fmt.Errorf("changes: %.200q is of another service", c.What)
		}
	}
	return nil
}

// Action returns the action on the service, "none" if it does not change.
func (p *Plan) Action() string {
	for _, c := range p.Changes {
		if strings.HasPrefix(c.What, "compose.service.") {
			return c.Action
		}
	}
	return none
}

// Ailing returns a sentence if the plan has no changes but the service is unhealthy, else
// "".
func (p *Plan) Ailing() string {
	obs, err := Observe(p.Seen.Text)
	if err != nil || len(p.Changes) > 0 {
		return ""
	}
	for _, c := range obs.Containers {
		if c.Health == "unhealthy" {
			return "the service runs as it should, and is unhealthy"
		}
	}
	return ""
}

// Mounts returns what the service mounts: host directories by their paths, and volumes by
// their names in Docker.
func (p *Plan) Mounts() []string {
	out := slices.Clone(p.Target.Binds)
	for _, v := range p.Target.Volumes {
		out = append(out, "volume "+p.Target.Project+"_"+v)
	}
	return out
}

// Back describes for people what a failed apply goes back to.
func (p *Plan) Back() string {
	switch v := &p.Previous; {
	case v.State == PreviousNone:
		return "no service, as it is now"
	case v.State == PreviousUnknown:
		return "nothing: what runs now is not known"
	case !v.Ran:
		return fmt.Sprintf("commit %.12s with image %s, which is not well now either", v.Commit, v.ImageID)
	case v.Unrecorded && v.Job != "":
		return fmt.Sprintf("commit %.12s with image %s, which was applied last; something else runs now", v.Commit, v.ImageID)
	default:
		return fmt.Sprintf("commit %.12s with image %s", v.Commit, v.ImageID)
	}
}

// Destructive reports whether a change destroys something that cannot be restored.
func (p *Plan) Destructive() bool {
	return slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Destructive })
}

// Same returns why a host is not the one that the plan was made for, "" if it is.
func (h Host) Same(address string, port int, user string, keys []ssh.PublicKey) string {
	var prints []string
	for _, k := range keys {
		prints = append(prints, ssh.FingerprintSHA256(k))
	}
	slices.Sort(prints)
	switch {
	case h.Address != address || h.Port != port || h.User != user:
		return "has another address or user in hosts.yaml than when the plan was made"
	case !slices.Equal(h.Keys, prints):
		return "has other keys in hosts.yaml than when the plan was made"
	}
	return ""
}

// Container is one container of the service, as Docker describes it.
type Container struct {
	ID, Image, Hash, Status, Health string
	Restarts                        string
}

// Observation is the parsed text of [Seen].
type Observation struct {
	Image      string // id of the image there; "-": it has none of this name
	Containers []Container
	Files      map[string]string // digests by path; "-": absent, "other": not a file
	Current    string            // the current job; "-": none
}

// Observe parses the text of [Seen].
func Observe(text string) (*Observation, error) {
	o := &Observation{Files: map[string]string{}}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines[0] != "carboy-observed 1" {
		return nil, errors.New("host: its account is of another version")
	}
	for _, l := range lines[1:] {
		f := strings.Split(l, " ")
		switch {
		case f[0] == "image" && len(f) == 2 && imageID.MatchString(f[1]):
			o.Image = f[1]
		case f[0] == "container" && len(f) == 7 && sha.MatchString(f[1]):
			o.Containers = append(o.Containers, Container{f[1], f[2], f[3], f[4], f[5], f[6]})
		case f[0] == "file" && len(f) == 3:
			o.Files[f[2]] = f[1]
		case f[0] == "current" && len(f) == 2:
			o.Current = f[1]
		default:
			return nil, fmt.Errorf("host: its account has a line that is none: %.100q", l)
		}
	}
	return o, nil
}
