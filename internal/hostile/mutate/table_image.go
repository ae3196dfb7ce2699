package main

// S1: images that bottles have as their root.

var imageMutants = []mutant{
	{
		Name: "images-lead-out", Promise: "S1",
		Why:     "links of an image are followed as the host would: a layer writes to its files",
		Package: "./internal/image", Tests: []string{"TestHostileLayers"}, Says: "what lies outside",
		edits: []edit{{"internal/image/unpack.go", "unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV", "0"}},
	},
	{
		Name: "images-hide-what-is-above", Promise: "S1",
		Why:     "a whiteout of .. removes what is beside the image's directory",
		Package: "./internal/image", Tests: []string{"TestHostileLayers"}, Says: "not its own",
		edits: []edit{{"internal/image/unpack.go", "	case name == \"\" || name == \".\" || name == \"..\":", "	case name == \"/\":"}},
	},
	{
		Name: "images-give-rights", Promise: "S1",
		Why:     "a set-user-id program of an image lies on the host and belongs to the user",
		Package: "./internal/image", Tests: []string{"TestModes"}, Says: "su: ",
		edits: []edit{{"internal/image/unpack.go", "m := uint32(h.Mode) & 0o777", "m := uint32(h.Mode) & 0o7777"}},
	},
	{
		Name: "images-are-believed", Promise: "S1",
		Why:     "what a registry sends is unpacked whatever its digest",
		Package: "./internal/image", Tests: []string{"TestLyingSources"}, Says: "got <nil>",
		edits: []edit{{"internal/image/layers.go", "sum.Sum(nil)) != d.Digest.Hex:", "sum.Sum(nil)) == \"\":"}, {"internal/image/image.go", "sum.Sum(nil)) != d.Digest.Hex {", "sum.Sum(nil)) == \"\" {"}, {"internal/image/unpack.go", "sum.Sum(nil)) != diff {", "sum.Sum(nil)) == \"\" {"}},
	},
	{
		Name: "images-are-fetched-from-anywhere", Promise: "S1",
		Why:     "a manifest sends carboy to an address of its choice",
		Package: "./internal/image", Tests: []string{"TestLyingSources"}, Says: "asked",
		edits: []edit{{"internal/image/image.go", "len(d.URLs) > 0 || !d.MediaType.IsDistributable()", "false"}},
	},
	{
		Name: "images-have-no-bound", Promise: "S4",
		Why:     "a small layer fills the disk",
		Package: "./internal/image", Tests: []string{"TestBombs"}, Says: "bytes: ",
		edits: []edit{{"internal/image/unpack.go", "	if u.bytes += h.Size; u.bytes > u.limits.Bytes {", "	if u.bytes += h.Size; false {"}, {"internal/image/unpack.go", "N: u.limits.Bytes - u.bytes + (u.limits.Entries-u.entries)*1024 + 1<<20", "N: 1 << 60"}},
	},
	{
		Name: "links-of-images-lead-to-the-host", Promise: "S1",
		Why:     "an image whose bundle of certificates is a link to a key of the host's brings that in",
		Package: "./internal/rootfs", Tests: []string{"TestLinksStayInside"}, Says: "holds the host's key",
		edits: []edit{{"internal/rootfs/trust.go", "Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,", "Resolve: 0,"}, {"internal/rootfs/trust.go", "unix.Openat2(root, \".\"+path,", "unix.Openat2(root, b.base+path,"}},
	},
}
