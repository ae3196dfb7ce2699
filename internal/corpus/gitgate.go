package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/gitobject"
)

// pushes attacks the git gate of a bottle, which leads to a repository on this machine.
func pushes(l *lab, chosen []attacker.Attack) error {
	up := l.dir + "/up.git"
	tip, err := makeUpstream(up)
	if err != nil {
		return err
	}
	if err := l.plantManifests(up); err != nil {
		return err
	}
	w := &attacker.World{Workspace: l.ws, Git: "http://git.carboy.internal/app.git", GitTip: tip}
	r, err := l.attackBy(chosen, w, l.pusher)
	if err != nil {
		return err
	}
	if !r.exited() {
		return fmt.Errorf("the bottle ended with %s: %.300s", r.ended(), r.msg)
	}
	return l.observePushes(up, chosen)
}

// plantManifests declares a bottle whose git gate leads to a repository.
func (l *lab) plantManifests(up string) error {
	for name, text := range map[string]string{
		"agents/pusher.md": "---\nbottle: pusher\n---\n",
		"bottles/pusher.md": "---\nsupervise: false\nagent_provider: {template: command, settings: {command: [/bin/sh, -c, '{prompt}']}}\n" +
			"git-gate: {repos: {app: {url: \"file://" + up + "\"}}}\n---\n",
	} {
		if err := plant(l.dir+"/c/"+name, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pusher runs the attacker in a bottle that has manifests: only those have a git gate.
func (l *lab) pusher(in *os.File) *ran {
	l.bottles++
	var out, msg buffer
	bounds := limits()
	bounds.Timeout *= 3 // git runs some five programs on the host for each of the pushes
	ctx, cancel := context.WithTimeout(l.ctx, bounds.Timeout)
	defer cancel()
	s, err := l.client.Start(ctx, carboy.StartOptions{
		Agent: "pusher", Dir: l.ws, Cwd: true, Headless: true, Prompt: "exec " + me + "attack", Stdin: in, Stdout: &out, Stderr: &msg,
		Confirm: func(p *carboy.Preflight) error {
			p.Run.Mounts, p.Run.Limits = append(p.Run.Mounts, l.program+":"+attacker.Path+":ro"), bounds
			return nil
		},
	})
	r := &ran{err: err, out: out.String(), msg: msg.String()}
	if s != nil {
		r.rec = s.Receipt
	}
	return r
}

// makeUpstream makes a bare repository with one commit, and returns the commit's name.
func makeUpstream(dir string) (tip string, err error) {
	g := attacker.Git{Dir: dir}
	tip = g.Commit(g.Tree("100644 a.txt="+g.Object("blob", "one\n")), "", "A", "first")
	for file, text := range map[string]string{
		"HEAD": "ref: refs/heads/main\n", "refs/heads/main": tip + "\n", "objects/pack/none": "",
		"config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[receive]\n\tadvertisePushOptions = true\n[uploadpack]\n\thideRefs = " + strings.TrimSuffix(attacker.HiddenRefs, "/") + "\n",
	} {
		g.File(file, text)
	}
	return tip, g.Err
}

// observePushes judges the attacks by what arrived in the repository.
func (l *lab) observePushes(up string, chosen []attacker.Attack) error {
	there, err := allOf(l.ctx, up)
	if err != nil {
		return err
	}
	for _, a := range chosen {
		honest, evil := attacker.PushMarks(a.ID)
		for _, m := range honest {
			if !strings.Contains(there, m) {
				l.doubt("an honest push did not arrive: "+m, a.ID)
			}
		}
		for _, m := range evil {
			if strings.Contains(there, m) {
				l.accuse("upstream has something of the push "+m, a.ID)
			}
		}
		if len(honest) == 0 {
			l.doubt("it pushes nothing", a.ID)
		}
	}
	return nil
}

// allOf returns all that a repository holds: the names of its references, and every
// object, also of those to which no reference leads.
func allOf(ctx context.Context, dir string) (string, error) {
	var all strings.Builder
	objects := gitobject.New(gitobject.SHA1)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		in, size := bytes.NewReader(b), int64(len(b))
		switch {
		case filepath.Ext(path) == ".pack":
			return objects.AddPack(ctx, in, size)
		case len(d.Name()) == 38 && len(filepath.Base(filepath.Dir(path))) == 2:
			return objects.AddLoose(in, size)
		}
		fmt.Fprintf(&all, "%s %s\n", strings.TrimPrefix(path, dir+"/"), b)
		return nil
	})
	objects.IDs(func(id gitobject.ID) {
		_, b, rerr := objects.Read(id)
		err = errors.Join(err, rerr)
		all.Write(b)
	})
	return all.String(), err
}
