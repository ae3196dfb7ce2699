package microvm

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// bzImage returns the beginning of a kernel of that version.
func bzImage(version string) []byte {
	b := make([]byte, 4096)
	copy(b[bootMagicAt:], "HdrS")
	binary.LittleEndian.PutUint16(b[bootProtocolAt:], 0x20f)
	binary.LittleEndian.PutUint16(b[bootVersionAt:], 0x300)
	copy(b[bootSetupAt+0x300:], version+" (someone@somewhere) #1 SMP\x00")
	return b
}

// module returns a kernel module: an ELF file whose only section is .modinfo.
func module(depends string) []byte {
	const names = "\x00.modinfo\x00.shstrtab\x00"
	info := "license=GPL\x00depends=" + depends + "\x00name=x\x00"
	le := binary.LittleEndian
	h := make([]byte, 64)
	copy(h, "\x7fELF\x02\x01\x01")
	le.PutUint16(h[16:], 1)  // relocatable
	le.PutUint16(h[18:], 62) // x86-64
	le.PutUint32(h[20:], 1)
	at := uint64(64 + len(info) + len(names))
	le.PutUint64(h[40:], at)
	le.PutUint16(h[52:], 64)
	le.PutUint16(h[58:], 64)
	le.PutUint16(h[60:], 3)
	le.PutUint16(h[62:], 2)
	section := func(name, kind uint32, off, size uint64) []byte {
		s := make([]byte, 64)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], off)
		le.PutUint64(s[32:], size)
		le.PutUint64(s[48:], 1)
		return s
	}
	return slices.Concat(h, []byte(info), []byte(names), make([]byte, 64),
		section(1, 1, 64, uint64(len(info))), section(10, 3, uint64(64+len(info)), uint64(len(names))))
}

// system makes an unpacked kernel package with the drivers, of which some are built in.
func system(t *testing.T, version string) (kernelPath, modules string) {
	t.Helper()
	dir := t.TempDir()
	modules = filepath.Join(dir, "lib/modules", version)
	put(t, filepath.Join(dir, "boot/vmlinuz-"+version), bzImage(version))
	order := []string{}
	add := func(name, depends, suffix string) {
		rel := "kernel/drivers/" + name + ".ko"
		order = append(order, rel)
		put(t, filepath.Join(modules, rel+suffix), pack(t, suffix, module(depends)))
	}
	add("virtio", "", "")
	add("virtio_ring", "virtio", ".xz")
	add("virtio-mmio", "virtio_ring,virtio", ".zst") // the kernel writes names either way
	add("virtio_console", "virtio_ring", ".gz")
	add("virtio_blk", "virtio,virtio_ring", "")
	add("failover", "", "")
	add("net_failover", "failover", "")
	add("virtio_net", "net_failover", "")
	add("erofs", "libcrc32c", "")
	add("libcrc32c", "", "")
	add("unwanted", "", "")
	put(t, modules+"/modules.order", []byte(strings.Join(order, "\n")+"\n../../evil.ko\n"))
	put(t, modules+"/modules.builtin", []byte("kernel/fs/ext4/ext4.ko\nkernel/fs/overlayfs/overlay.ko\n"))
	return filepath.Join(dir, "boot/vmlinuz-"+version), modules
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func pack(t *testing.T, suffix string, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var err error
	switch suffix {
	case ".xz":
		w, werr := xz.NewWriter(&out)
		_, err = w.Write(b)
		err = errors.Join(werr, err, w.Close())
	case ".zst":
		w, werr := zstd.NewWriter(&out)
		_, err = w.Write(b)
		err = errors.Join(werr, err, w.Close())
	case ".gz":
		w := gzip.NewWriter(&out)
		_, err = w.Write(b)
		err = errors.Join(err, w.Close())
	default:
		return b
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestKernel: a kernel is found by its path, and its drivers in the order of their needs,
// packed or not.
func TestKernel(t *testing.T) {
	path, _ := system(t, "6.9.1-cloud-amd64")
	t.Setenv(KernelEnv, path)
	k, err := findKernel()
	if err != nil {
		t.Fatal(err)
	}
	if k.version != "6.9.1-cloud-amd64" || k.path != path {
		t.Errorf("found %+v", k)
	}
	at := map[string]int{}
	for i, m := range k.modules {
		at[moduleName(m)] = i + 1
	}
	for _, before := range [][2]string{
		{"virtio", "virtio_ring"}, {"virtio_ring", "virtio_mmio"}, {"virtio_ring", "virtio_console"}, {"virtio_ring", "virtio_blk"},
		{"failover", "net_failover"}, {"net_failover", "virtio_net"}, {"libcrc32c", "erofs"},
	} {
		if at[before[0]] == 0 || at[before[0]] >= at[before[1]] {
			t.Errorf("%s does not come before %s: %q", before[0], before[1], k.modules)
		}
	}
	if len(k.modules) != 10 {
		t.Errorf("modules: %q", k.modules)
	}
	var b bytes.Buffer
	if err := writeInitramfs(&b, []byte("agent"), k.modules); err != nil {
		t.Fatal(err)
	}
	files := readCpio(t, b.Bytes())
	if f := files["init"]; f.content != "agent" || f.mode != unix.S_IFREG|0o755 {
		t.Errorf("init: %+v", f)
	}
	if f := files["dev/console"]; f.mode != unix.S_IFCHR|0o600 || f.major != 5 || f.minor != 1 {
		t.Errorf("console: %+v", f)
	}
	if f := files["modules/00-virtio.ko"]; f.content != string(module("")) {
		t.Errorf("the first module: %d bytes", len(f.content))
	}
	found := 0
	for n, f := range files {
		if strings.HasSuffix(n, ".ko") {
			found++
			if !strings.HasPrefix(f.content, "\x7fELF") {
				t.Errorf("%s is packed", n)
			}
		}
	}
	if found != 10 {
		t.Errorf("%d modules in the initramfs", found)
	}
}

type cpioFile struct {
	mode, major, minor int
	content            string
}

// readCpio reads what the kernel reads.
func readCpio(t *testing.T, b []byte) map[string]cpioFile {
	t.Helper()
	out := map[string]cpioFile{}
	for {
		if len(b) < 110 || string(b[:6]) != "070701" {
			t.Fatalf("a header begins with %.20q", b)
		}
		var v [13]int
		for i := range v {
			if _, err := fmt.Sscanf(string(b[6+8*i:14+8*i]), "%X", &v[i]); err != nil {
				t.Fatal(err)
			}
		}
		name := string(b[110 : 110+v[11]-1])
		data := (110 + v[11] + 3) / 4 * 4
		if name == "TRAILER!!!" {
			return out
		}
		out[name] = cpioFile{mode: v[1], major: v[9], minor: v[10], content: string(b[data : data+v[6]])}
		b = b[(data+v[6]+3)/4*4:]
	}
}

// TestKernelRefused: what is no kernel, what others can change, and what lacks a driver
// is refused with a reason.
func TestKernelRefused(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(t *testing.T, path, modules string)
		says string
	}{
		"absent":      {func(t *testing.T, path, _ string) { os.Remove(path) }, "no such file"},
		"no kernel":   {func(t *testing.T, path, _ string) { put(t, path, []byte("#!/bin/sh")) }, "not a bzImage"},
		"an ELF file": {func(t *testing.T, path, _ string) { put(t, path, module("")) }, "not a bzImage"},
		"old": {func(t *testing.T, path, _ string) {
			b := bzImage("2.6.1")
			binary.LittleEndian.PutUint16(b[bootProtocolAt:], 0x203)
			put(t, path, b)
		}, "too old"},
		"a version beyond": {func(t *testing.T, path, _ string) {
			b := bzImage("6.9.1")
			binary.LittleEndian.PutUint16(b[bootVersionAt:], 0xffff)
			put(t, path, b)
		}, "version"},
		"a version with a path": {func(t *testing.T, path, _ string) { put(t, path, bzImage("../../../etc")) }, "no version"},
		"others may write":      {func(t *testing.T, path, _ string) { os.Chmod(path, 0o666) }, "written by others"},
		"a directory":           {func(t *testing.T, path, _ string) { os.Remove(path); os.Mkdir(path, 0o755) }, "not a regular file"},
		"no modules":            {func(t *testing.T, _, modules string) { os.RemoveAll(modules) }, "modules are in none"},
		"no list of built-ins":  {func(t *testing.T, _, modules string) { os.Remove(modules + "/modules.builtin") }, "modules.builtin"},
		"no driver":             {func(t *testing.T, _, modules string) { put(t, modules+"/modules.builtin", nil) }, "no driver ext4"},
		"a module of others":    {func(t *testing.T, _, modules string) { os.Chmod(modules+"/kernel/drivers/erofs.ko", 0o777) }, "written by others"},
		"a module is gone":      {func(t *testing.T, _, modules string) { os.Remove(modules + "/kernel/drivers/virtio.ko") }, "virtio.ko"},
		"no module":             {func(t *testing.T, _, modules string) { put(t, modules+"/kernel/drivers/virtio.ko", []byte("junk")) }, "virtio.ko"},
		"broken packing": {func(t *testing.T, _, modules string) {
			put(t, modules+"/kernel/drivers/virtio_ring.ko.xz", []byte("junk"))
		}, "unpack"},
		"a circle": {func(t *testing.T, _, modules string) {
			put(t, modules+"/kernel/drivers/virtio.ko", module("virtio_ring"))
		}, "no driver"},
	} {
		path, modules := system(t, "6.9.1")
		c.edit(t, path, modules)
		t.Setenv(KernelEnv, path)
		_, err := findKernel()
		var u *bottle.UnavailableError
		if !errors.As(err, &u) || u.Advice == "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if os.Geteuid() == 0 {
		path, _ := system(t, "6.9.1")
		os.Chown(path, 12345, 0)
		t.Setenv(KernelEnv, path)
		if _, err := findKernel(); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("another user's kernel: %v", err)
		}
	}
}

func TestKernelOrder(t *testing.T) {
	paths := []string{"/boot/vmlinuz-6.1.0-9-amd64", "/boot/vmlinuz-6.1.0-10-amd64", "/boot/vmlinuz-5.10.0-30-cloud-amd64", "/boot/vmlinuz-6.1.0-9-cloud-amd64", "/boot/vmlinuz-6.12.1-amd64"}
	slices.SortFunc(paths, func(a, b string) int { return compareKernels(b, a) })
	want := []string{"6.1.0-9-cloud-amd64", "5.10.0-30-cloud-amd64", "6.12.1-amd64", "6.1.0-10-amd64", "6.1.0-9-amd64"}
	for i, p := range paths {
		if p != "/boot/vmlinuz-"+want[i] {
			t.Fatalf("the order is %q", paths)
		}
	}
}
