package hostexec

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The git gate's forms are whole: nothing can be added to one, and nothing in one can
// become an option or another place.
func TestGitServeForms(t *testing.T) {
	pack := "pack-" + strings.Repeat("0a", 20) + ".pack"
	for _, args := range [][]string{
		nil, {""}, {"version"}, {"clone"}, {"index-pack"}, {"index-pack", "-1"}, {"index-pack", "1x"}, {"index-pack", "0"}, {"index-pack", "--stdin"},
		{"index-pack", "1", "objects"}, {"index-pack", "1", "/a/../b"}, {"index-pack", "1", "/a\n/b"}, {"index-pack", "1", "/a", "/b"},
		{"recheck", "x.pack"}, {"recheck", "../" + pack}, {"recheck", pack, ""}, {"store"}, {"store", "1", "/a"}, {"store", "--strict"}, {"fsck", "--lost-found"}, {"fsck", "/a", "/b"}, {"cat-file", "--filters"}, {"cat-file", "HEAD"}, {"list-objects", "x"}, {"read-objects", "x"},
		{"upload-pack"}, {"upload-pack", "2"}, {"upload-pack", "1", "answer"}, {"upload-pack", "2", "answer", "/etc"}, {"upload-pack", "2", "other"}, {"receive-pack", "0", "--advertise"},
		{"upload-archive", "0", "answer"}, {"http-backend"}, {"-c", "x=y", "cat-file"},
	} {
		wantReason(t, prepareGitServe(&call{program: "git", args: args, dir: "/tmp"}), reasonArgument)
	}
	for _, args := range [][]string{
		{"index-pack", "1"}, {"index-pack", "1000", "/a/objects"}, {"index-pack", "1", `/a:/"b`}, {"recheck", pack}, {"recheck", pack, "/a/objects"}, {"store", "1"}, {"fsck"}, {"fsck", "/a/objects"}, {"cat-file"}, {"list-objects"}, {"read-objects"},
		{"upload-pack", "2", "advertise"}, {"upload-pack", "0", "answer"}, {"receive-pack", "0", "answer"},
	} {
		c := &call{program: "git", args: args, dir: "/tmp"}
		if err := prepareGitServe(c); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		if !slices.Contains(c.env, "GIT_ALLOW_PROTOCOL=none") || !slices.Contains(c.env, "GIT_CONFIG_GLOBAL=/dev/null") || !slices.Contains(c.env, "GIT_CONFIG_KEY_0=core.hooksPath") {
			t.Errorf("%q: the settings are not forced: %q", args, c.env)
		}
	}
}

// TestPipes: a command's input and output may be pipes. All its input arrives, and its
// output ends when it does.
func TestPipes(t *testing.T) {
	r := newTestRunner(t, Options{})
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer outR.Close()
	cmd := shell(t, "cat; echo end >&2")
	cmd.Input, cmd.Output, cmd.Timeout = inR, outW, time.Minute
	text := strings.Repeat("0123456789abcdef", 1<<16)
	go func() {
		_, _ = io.WriteString(inW, text)
		_ = inW.Close()
	}()
	done := make(chan error, 1)
	go func() {
		res, err := r.Run(t.Context(), cmd)
		if err == nil && (res.Stdout.Total != 0 || string(res.Stderr.Head) != "end\n") {
			t.Errorf("kept %d bytes, and %q", res.Stdout.Total, res.Stderr.Head)
		}
		done <- err
	}()
	got, err := io.ReadAll(outR)
	if err != nil || string(got) != text {
		t.Errorf("%d of %d bytes: %v", len(got), len(text), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Both are closed also where nothing is started.
	in, other, _ := os.Pipe()
	defer other.Close()
	cmd.Input, cmd.Output, cmd.Stdin = in, nil, []byte("x")
	_, err = r.Run(t.Context(), cmd)
	wantReason(t, err, reasonArgument)
	if err := in.Close(); err == nil {
		t.Error("the end of a pipe was left open")
	}
}
