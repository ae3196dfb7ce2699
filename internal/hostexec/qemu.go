package hostexec

import (
	"regexp"
	"slices"
	"strconv"
	"sync"
)

// qemuOptions are the options of QEMU that a micro-VM needs, each with what may follow
// it; nil: nothing follows. All that it opens are inherited descriptors and two files of
// its own root, so no option names a file of this machine, a network or a program.
var qemuOptions = map[string]func() *regexp.Regexp{
	"-M":              whole(`microvm`),
	"-accel":          whole(`kvm|tcg,thread=multi`),
	"-cpu":            whole(`(max|host),-vmx,-svm,pmu=off`),
	"-m":              whole(`[1-9][0-9]{0,7}`),
	"-smp":            whole(`[1-9][0-9]{0,2}`),
	"-no-reboot":      nil,
	"-nodefaults":     nil,
	"-no-user-config": nil,
	"-display":        whole(`none`),
	"-global":         whole(`virtio-mmio\.force-legacy=false`),
	"-kernel":         whole(regexp.QuoteMeta(SealedKernel)),
	"-initrd":         whole(regexp.QuoteMeta(SealedInitrd)),
	"-append":         whole(`[a-zA-Z0-9=,._ -]{0,500}`),
	"-add-fd":         whole(`fd=[0-9]{1,3},set=[0-9]{1,3}`),
	"-blockdev":       whole(`driver=(file|raw),node-name=[a-z0-9]{1,20},(filename=/dev/fdset/[0-9]{1,3}|file=[a-z0-9]{1,20})(,(read-only|locking|cache\.no-flush|discard)=(on|off|unmap))*`),
	"-netdev":         whole(`dgram,id=[a-z0-9]{1,20},local\.type=fd,local\.str=[0-9]{1,3}`),
	"-device":         whole(`virtio-(net|serial|blk)-device(,(netdev|drive|mac|host_mtu|serial)=[a-z0-9:]{1,20})*|virtserialport,chardev=[a-z0-9]{1,20},name=[a-z0-9]{1,20}`),
	"-chardev":        whole(`socket,id=[a-z0-9]{1,20},fd=[0-9]{1,3}|stdio,id=[a-z0-9]{1,20},signal=off`),
	"-serial":         whole(`chardev:[a-z0-9]{1,20}`),
	"-sandbox":        whole(`on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny`),
}

// SealedKernel and SealedInitrd are the paths, in QEMU's own root, of the two files that
// it opens by name.
const (
	SealedKernel = "/vm/kernel"
	SealedInitrd = "/vm/initrd"
)

// whole returns a function that compiles the pattern of a whole value when it is first
// called.
func whole(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:` + pattern + `)$`) })
}

// qemuSandbox must be among the options, so that QEMU filters its own system calls.
const qemuSandbox = "-sandbox"

func prepareQemu(c *call) error {
	for i := 0; i < len(c.args); i++ {
		option := c.args[i]
		value, ok := qemuOptions[option]
		if !ok {
			return refuse(c.program, reasonArgument, "option %d is not on its list", i+1)
		}
		if value == nil {
			continue
		}
		if i++; i == len(c.args) || !value().MatchString(c.args[i]) {
			return refuse(c.program, reasonArgument, "what follows %s is not on its list", option)
		}
	}
	if !slices.Contains(c.args, qemuSandbox) {
		return refuse(c.program, reasonArgument, "%s is missing", qemuSandbox)
	}
	c.argv = c.args
	// Each arena of the C library takes 64 MiB of the address space, which is limited.
	c.env = []string{"MALLOC_ARENA_MAX=4"}
	return nil
}

// mke2fsForm are the arguments of mke2fs before the file and its size in KiB: features
// that do not depend on the machine's settings, and no journal, since nobody reads the
// file system after a crash.
var mke2fsForm = []string{
	"-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0",
	"-O", "none,filetype,sparse_super,large_file,dir_index,ext_attr,extent,flex_bg,uninit_bg,dir_nlink,extra_isize,huge_file,64bit",
	"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0",
}

var mke2fsSize = whole(`[1-9][0-9]{0,14}k`)

func prepareMke2fs(c *call) error {
	n := len(mke2fsForm)
	if len(c.args) != n+2 || !slices.Equal(c.args[:n], mke2fsForm) || !cleanAbsolute(c.args[n]) || !mke2fsSize().MatchString(c.args[n+1]) {
		return refuse(c.program, reasonArgument, "arguments are not its one form")
	}
	c.argv = c.args
	return nil
}

// Mke2fsArgs returns the arguments that make a file system of kib KiB in the file.
func Mke2fsArgs(file string, kib int64) []string {
	return append(slices.Clone(mke2fsForm), file, strconv.FormatInt(kib, 10)+"k")
}
