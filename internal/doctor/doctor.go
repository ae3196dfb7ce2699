package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/bottle/userns"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/platform"
	"github.com/carboy/carboy/internal/pool"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"`
}

// Diagnosis is the result of Doctor.
type Diagnosis struct {
	Schema   string          `json:"schema"`
	OK       bool            `json:"ok"`
	Build    string          `json:"build"`
	Backend  string          `json:"backend"`
	Kernel   string          `json:"embedded_kernel"` // the backend's build; the key is older than other backends
	Findings []Finding       `json:"findings"`
	Limits   bottle.Limits   `json:"default_limits"`
	Posture  *bottle.Posture `json:"posture"`
}

// Doctor checks whether this machine can run bottles. As one of the checks, it makes a
// real bottle and destroys it.
func (c *Doctor) Doctor(ctx context.Context) Diagnosis {
	d := Diagnosis{Schema: store.Schema("doctor"), OK: true, Build: c.Build, Backend: c.Backend.Name(), Kernel: c.Backend.Build(), Limits: plan.DefaultLimits(c.StateDir())}
	d.add("backend", c.Backend.Check(ctx), c.Backend.Name()+" can be used")
	d.add("state", nil, c.StateDir())
	rt, err := store.RuntimeDir(c.Env)
	d.add("runtime", err, rt)
	if err == nil {
		waiting, err := pool.Sweep(rt)
		d.add("pool", err, fmt.Sprintf("%d bottles wait for a run (carboy pool list)", waiting))
	}
	start := time.Now()
	p, err := c.probe(ctx)
	d.add("bottle", err, fmt.Sprintf("a bottle was made, judged and destroyed in %d ms", time.Since(start).Milliseconds()))
	if err == nil {
		d.Posture = &p
		if floor := c.Config.Floor(); floor.Least != "" {
			d.add("isolation", floor.Check(p.Backend, p.Isolation), fmt.Sprintf("%s, and %s accepts %s or stronger", p.Isolation, floor.From, floor.Least))
		}
	}
	for _, l := range c.Backend.Capabilities().Missing() {
		d.add("without", nil, string(l.What)+": "+l.Why)
	}
	if userns.AppArmorRestricts() {
		d.Findings = append(d.Findings, Finding{Check: "apparmor", OK: err == nil, Detail: "AppArmor reserves user namespaces for programs with a profile", Advice: "carboy doctor --fix"})
	}
	if l, ok := platform.Read("/").Line(); ok {
		worked := d.Posture != nil
		d.OK = d.OK && (l.OK || worked)
		d.Findings = append(d.Findings, Finding{Check: l.Check, OK: l.OK || worked, Detail: l.Detail, Advice: l.Advice})
	}
	rep, err := c.judge.AuditVerify(ctx, "")
	if err == nil && !rep.OK() {
		err = fmt.Errorf("the audit log is %s: carboy audit verify says where", rep.Status)
	}
	d.add("audit", err, c.AuditDir())
	return d
}

func (d *Diagnosis) add(check string, err error, detail string) {
	f := Finding{Check: check, OK: err == nil, Detail: detail}
	if err != nil {
		d.OK = false
		f.Detail = err.Error()
		var u *bottle.UnavailableError
		if errors.As(err, &u) {
			f.Advice = u.Advice
		}
		var weak *bottle.TooWeakError
		if errors.As(err, &weak) {
			f.Advice = weak.Advice()
		}
	}
	d.Findings = append(d.Findings, f)
}

func (c *Doctor) probe(ctx context.Context) (bottle.Posture, error) {
	id, err := plan.Whoami("")
	if err != nil {
		return bottle.Posture{}, err
	}
	root, err := rootfs.Host(rootfs.Options{User: id.User, Hostname: "carboy"})
	if err != nil {
		return bottle.Posture{}, err
	}
	l, err := plan.FillLimits(bottle.Limits{Disk: 64 << 20}, c.StateDir())
	if err != nil {
		return bottle.Posture{}, err
	}
	prober, ok := c.Backend.(bottle.Prober)
	if !ok {
		return bottle.Posture{}, fmt.Errorf("backend %s cannot be tried without a run", c.Backend.Name())
	}
	return prober.Probe(ctx, &bottle.Spec{
		ID: "doctor", Root: root, User: id.User, HostUID: id.HostUID, HostGID: id.HostGID, Limits: l, Hostname: "carboy",
	})
}

// AppArmorPath is the file to which doctor --fix writes the profile.
const AppArmorPath = platform.ProfilePath

// AppArmorProfile is the profile that lets this binary make user namespaces.
func AppArmorProfile() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return "", err
	}
	return userns.AppArmorProfile(exe), nil
}

// InstallAppArmorProfile writes the profile and loads it. It needs root.
func InstallAppArmorProfile(ctx context.Context) error {
	profile, err := AppArmorProfile()
	if err != nil {
		return err
	}
	if err := store.WriteFile(AppArmorPath, []byte(profile), 0o644); err != nil {
		return err
	}
	r, err := hostexec.New(hostexec.Options{})
	if err != nil {
		return err
	}
	_, err = r.Run(ctx, hostexec.Command{
		Program: hostexec.AppArmorParser, Args: []string{"--replace", AppArmorPath}, Dir: "/", Timeout: time.Minute,
	})
	return errors.Join(err, r.Close(ctx))
}
