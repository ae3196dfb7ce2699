package microvm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// kernel is a kernel of this machine that a micro-VM can boot.
type kernel struct {
	path    string
	version string
	modules []string // files to load, in order
}

// drivers lists the modules of a machine. Where the kernel has one built in, there is no
// file of it.
var drivers = []string{"virtio_mmio", "virtio_console", "virtio_blk", "virtio_net", "erofs", "ext4", "overlay"}

// kernelPattern finds the kernels of distributions.
const kernelPattern = "/boot/vmlinuz-*"

// findKernel returns the kernel that KernelEnv names or, of this system's, the newest that
// can boot; those made for virtual machines come first. The error is an UnavailableError.
func findKernel() (*kernel, error) {
	if path := os.Getenv(KernelEnv); path != "" {
		k, err := readKernel(path)
		if err != nil {
			return nil, &bottle.UnavailableError{Backend: name, Reason: "the kernel that " + KernelEnv + " names can't be used", Advice: "name a kernel of a package, beside its modules", Err: err}
		}
		return k, nil
	}
	paths, _ := filepath.Glob(kernelPattern)
	slices.SortFunc(paths, func(a, b string) int { return compareKernels(b, a) })
	var errs []error
	for _, p := range paths {
		k, err := readKernel(p)
		if err == nil {
			return k, nil
		}
		errs = append(errs, err)
	}
	return nil, &bottle.UnavailableError{
		Backend: name, Reason: "there is no kernel for micro-VMs", Err: errors.Join(errs...),
		Advice: "install one (Debian: sudo apt-get install --no-install-recommends linux-image-cloud-amd64), or name the path of one: " + KernelEnv + "=/path/vmlinuz",
	}
}

// compareKernels orders paths of kernels: those for clouds and virtual machines last, and
// then by their numbers.
func compareKernels(a, b string) int {
	small := func(s string) int {
		if strings.Contains(s, "cloud") || strings.Contains(s, "kvm") || strings.Contains(s, "virt") {
			return 1
		}
		return 0
	}
	if d := small(filepath.Base(a)) - small(filepath.Base(b)); d != 0 {
		return d
	}
	return slices.Compare(numbers(a), numbers(b))
}

func numbers(s string) []int {
	var out []int
	for _, f := range strings.FieldsFunc(filepath.Base(s), func(r rune) bool { return !unicode.IsDigit(r) }) {
		n, _ := strconv.Atoi(f)
		out = append(out, n)
	}
	return out
}

// readKernel verifies that a file is a kernel, that nobody else can change it, and that
// the drivers it needs are there.
func readKernel(path string) (*kernel, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	f, err := openTrusted(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	k := &kernel{path: path}
	if k.version, err = bzImageVersion(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	dir, err := moduleDir(path, k.version)
	if err != nil {
		return nil, err
	}
	if k.modules, err = resolveModules(dir); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// openTrusted opens a file that only root and this user can change.
func openTrusted(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w (make it readable: sudo chmod a+r %s)", err, path)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, err
	}
	why := othersChange(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		why = "is not a regular file"
	}
	if why != "" {
		f.Close()
		return nil, fmt.Errorf("%s %s", path, why)
	}
	return f, nil
}

// The header of a bzImage (Documentation/arch/x86/boot.rst).
const (
	bootMagicAt    = 0x202
	bootProtocolAt = 0x206
	bootVersionAt  = 0x20e
	bootSetupAt    = 0x200
	oldestProtocol = 0x20a // of Linux 2.6.31
	maxSetup       = 64 << 10
)

// bzImageVersion returns the version that a kernel says of itself.
func bzImageVersion(r io.ReaderAt) (string, error) {
	b := make([]byte, maxSetup)
	n, err := r.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	b = b[:n]
	if n < bootVersionAt+2 || string(b[bootMagicAt:bootMagicAt+4]) != "HdrS" {
		return "", errors.New("is not a bzImage")
	}
	if p := binary.LittleEndian.Uint16(b[bootProtocolAt:]); p < oldestProtocol {
		return "", fmt.Errorf("its boot protocol %#x is too old", p)
	}
	at := bootSetupAt + int(binary.LittleEndian.Uint16(b[bootVersionAt:]))
	if at >= len(b) {
		return "", errors.New("does not say its version")
	}
	text, _, _ := bytes.Cut(b[at:min(at+200, len(b))], []byte{0})
	version, _, _ := strings.Cut(string(text), " ")
	if version == "" || strings.ContainsAny(version, "/\n") || version == "." || version == ".." {
		return "", fmt.Errorf("has no version but %.50q", text)
	}
	return version, nil
}

// moduleDir returns where the kernel's modules are: beside it, as in an unpacked package,
// or in the system.
func moduleDir(path, version string) (string, error) {
	tried := []string{filepath.Join(filepath.Dir(filepath.Dir(path)), "lib/modules", version), filepath.Join("/lib/modules", version), filepath.Join("/usr/lib/modules", version)}
	for _, dir := range tried {
		if _, err := os.Stat(filepath.Join(dir, "modules.order")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s: its modules are in none of %s", path, strings.Join(tried, ", "))
}

// resolveModules returns the files of the drivers and of what they need, in the order in
// which they must be loaded.
func resolveModules(dir string) ([]string, error) {
	index, err := moduleIndex(filepath.Join(dir, "modules.order"))
	if err != nil {
		return nil, err
	}
	built, err := moduleIndex(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	r := &resolver{dir: dir, index: index, built: built, done: map[string]bool{}}
	for _, m := range drivers {
		if err := r.add(m, 0); err != nil {
			return nil, err
		}
	}
	return r.out, nil
}

// moduleIndex reads a list of paths, by the names of the modules.
func moduleIndex(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		rel := strings.TrimSpace(line)
		if rel != "" && filepath.IsLocal(rel) {
			out[moduleName(rel)] = rel
		}
	}
	return out, nil
}

// moduleName returns a module's name, in which the kernel takes - for _.
func moduleName(path string) string {
	n := filepath.Base(path)
	if i := strings.Index(n, ".ko"); i > 0 {
		n = n[:i]
	}
	return strings.ReplaceAll(n, "-", "_")
}

type resolver struct {
	dir          string
	index, built map[string]string
	done         map[string]bool
	out          []string
}

// maxDepth bounds chains of modules.
const maxDepth = 30

func (r *resolver) add(module string, depth int) error {
	module = moduleName(module)
	if r.done[module] || r.built[module] != "" {
		return nil
	}
	rel := r.index[module]
	if rel == "" || depth > maxDepth {
		return fmt.Errorf("this kernel has no driver %s", module)
	}
	path, err := moduleFile(filepath.Join(r.dir, rel))
	if err != nil {
		return err
	}
	content, err := readModule(path)
	if err != nil {
		return err
	}
	depends, err := moduleDepends(content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, d := range depends {
		if err := r.add(d, depth+1); err != nil {
			return err
		}
	}
	r.done[module] = true
	r.out = append(r.out, path)
	return nil
}

// moduleFile returns the path of a module, which can be compressed although the list does
// not say so.
func moduleFile(path string) (string, error) {
	for _, suffix := range []string{"", ".xz", ".zst", ".gz"} {
		if _, err := os.Stat(path + suffix); err == nil {
			return path + suffix, nil
		}
	}
	return "", &fs.PathError{Op: "find module", Path: path, Err: fs.ErrNotExist}
}

// moduleDepends returns the names of the modules that a module needs, from its own words.
func moduleDepends(content []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("is not a kernel module")
	}
	b, err := s.Data()
	if err != nil {
		return nil, err
	}
	for line := range bytes.SplitSeq(b, []byte{0}) {
		if v, ok := bytes.CutPrefix(line, []byte("depends=")); ok && len(v) > 0 {
			return strings.Split(string(v), ","), nil
		}
	}
	return nil, nil
}
