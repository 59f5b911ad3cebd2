/* A schema message as an ArrowSchema that owns all of its parts. */
#include <stdio.h>
#include <stdlib.h>

#include "ipc_read.h"

/* Fields of the tables of Schema.fbs of Arrow's format. */
enum {
	SCHEMA_ENDIANNESS,
	SCHEMA_FIELDS,
	SCHEMA_METADATA,
};
enum {
	FIELD_NAME,
	FIELD_NULLABLE,
	FIELD_TYPE_TYPE,
	FIELD_TYPE,
	FIELD_DICTIONARY,
	FIELD_CHILDREN,
	FIELD_METADATA,
};
enum {
	PAIR_KEY,
	PAIR_VALUE,
};
/* The union Type. */
enum {
	TYPE_NULL = 1,
	TYPE_INT,
	TYPE_FLOAT,
	TYPE_BINARY,
	TYPE_UTF8,
	TYPE_BOOL,
	TYPE_DECIMAL,
	TYPE_DATE,
	TYPE_TIME,
	TYPE_TIMESTAMP,
	TYPE_INTERVAL,
	TYPE_LIST,
	TYPE_STRUCT,
	TYPE_UNION,
	TYPE_FIXED_BINARY,
	TYPE_FIXED_LIST,
	TYPE_MAP,
	TYPE_DURATION,
	TYPE_LARGE_BINARY,
	TYPE_LARGE_UTF8,
	TYPE_LARGE_LIST,
};

#define MOST_METADATA (UINT32_C(1) << 24) /* of a schema: a hundred thousand columns */
#define FORMAT_BYTES 64

struct reading {
	struct ipc_frame *frame;
	uint64_t fields_left; /* lists may share their elements, which could make them many */
	uint64_t bytes_left; /* of copied text, which fields may share as well */
};

static enum ipc_read outside(struct reading *r)
{
	return ipc_wrong(r->frame, IPC_DAMAGED, "its schema leads outside of itself");
}

static enum ipc_read unknown(struct reading *r)
{
	return ipc_wrong(r->frame, IPC_FOREIGN, "only pyarrow reads the type of a column");
}

static enum ipc_read repeats(struct reading *r)
{
	return ipc_wrong(r->frame, IPC_FOREIGN, "its schema is too deep or repeats itself");
}

static bool spend(struct reading *r, uint64_t bytes)
{
	if (bytes > r->bytes_left)
		return false;
	r->bytes_left -= bytes;
	return true;
}

/* --- the format of a type -------------------------------------------------------------------- */

/* Reads a number of the type's table; the caller sets the default for a missing one. */
struct parameters {
	int32_t first;
	int32_t second;
	int32_t third;
};

static const char *int_format(const struct parameters *p)
{
	static const char *const formats[][2] = {{"C", "c"}, {"S", "s"}, {"I", "i"}, {"L", "l"}};

	switch (p->first) {
	case 8:
		return formats[0][p->second];
	case 16:
		return formats[1][p->second];
	case 32:
		return formats[2][p->second];
	case 64:
		return formats[3][p->second];
	default:
		return NULL;
	}
}

static const char *one_of(const char *const *formats, int32_t count, int32_t unit)
{
	return unit >= 0 && unit < count ? formats[unit] : NULL;
}

static bool read_short(const struct flat_table *type, unsigned index, int32_t *value)
{
	int16_t given = (int16_t)*value;

	if (!flat_number(type, index, sizeof given, &given))
		return false;
	*value = given;
	return true;
}

static bool read_int(const struct flat_table *type, unsigned index, int32_t *value)
{
	return flat_number(type, index, sizeof *value, value);
}

static bool read_flag(const struct flat_table *type, unsigned index, int32_t *value)
{
	uint8_t given = 0;

	if (!flat_number(type, index, sizeof given, &given))
		return false;
	*value = given != 0;
	return true;
}

/* The parameters of a type, and their defaults. */
static bool read_parameters(uint8_t type_type, const struct flat_table *type, struct parameters *p)
{
	*p = (struct parameters){0};
	switch (type_type) {
	case TYPE_INT:
		return read_int(type, 0, &p->first) && read_flag(type, 1, &p->second);
	case TYPE_DECIMAL:
		p->third = 128;
		return read_int(type, 0, &p->first) && read_int(type, 1, &p->second) &&
		       read_int(type, 2, &p->third);
	case TYPE_DATE:
	case TYPE_DURATION:
		p->first = 1;
		return read_short(type, 0, &p->first);
	case TYPE_TIME:
		p->first = 1;
		p->second = 32;
		return read_short(type, 0, &p->first) && read_int(type, 1, &p->second);
	case TYPE_FLOAT:
	case TYPE_TIMESTAMP:
	case TYPE_INTERVAL:
		return read_short(type, 0, &p->first);
	case TYPE_FIXED_BINARY:
	case TYPE_FIXED_LIST:
		return read_int(type, 0, &p->first);
	case TYPE_MAP:
		return read_flag(type, 0, &p->first);
	default:
		return true;
	}
}

static const char *plain_format(uint8_t type_type, const struct parameters *p)
{
	static const char *const floats[] = {"e", "f", "g"};
	static const char *const dates[] = {"tdD", "tdm"};
	static const char *const times[] = {"tts", "ttm", "ttu", "ttn"};
	static const char *const durations[] = {"tDs", "tDm", "tDu", "tDn"};
	static const char *const intervals[] = {"tiM", "tiD", "tin"};

	switch (type_type) {
	case TYPE_NULL:
		return "n";
	case TYPE_INT:
		return int_format(p);
	case TYPE_FLOAT:
		return one_of(floats, 3, p->first);
	case TYPE_BINARY:
		return "z";
	case TYPE_UTF8:
		return "u";
	case TYPE_BOOL:
		return "b";
	case TYPE_DATE:
		return one_of(dates, 2, p->first);
	case TYPE_TIME: /* the first two units in 32 bits, the others in 64 */
		return p->second == (p->first < 2 ? 32 : 64) ? one_of(times, 4, p->first) : NULL;
	case TYPE_INTERVAL:
		return one_of(intervals, 3, p->first);
	case TYPE_LIST:
		return "+l";
	case TYPE_STRUCT:
		return "+s";
	case TYPE_MAP:
		return "+m";
	case TYPE_DURATION:
		return one_of(durations, 4, p->first);
	case TYPE_LARGE_BINARY:
		return "Z";
	case TYPE_LARGE_UTF8:
		return "U";
	case TYPE_LARGE_LIST:
		return "+L";
	default:
		return NULL;
	}
}

static char *copy_text(const char *text, uint64_t length)
{
	char *copy = malloc(length + 1);

	if (copy) {
		memcpy(copy, text, length);
		copy[length] = 0;
	}
	return copy;
}

static enum ipc_read format_timestamp(struct reading *r, const struct flat_table *type, const struct parameters *p,
				      struct ArrowSchema *schema)
{
	static const char *const units[] = {"tss:", "tsm:", "tsu:", "tsn:"};
	const char *unit = one_of(units, 4, p->first);
	const char *zone;
	uint64_t length;
	char *format;

	if (!flat_text(type, 1, &zone, &length))
		return outside(r);
	if (!unit)
		return unknown(r);
	if (!spend(r, length))
		return repeats(r);
	format = malloc(strlen(unit) + length + 1);
	if (!format)
		return IPC_NO_MEMORY;
	strcpy(format, unit);
	if (zone)
		memcpy(format + strlen(unit), zone, length + 1);
	schema->format = format;
	return IPC_READ;
}

static enum ipc_read set_format(struct reading *r, uint8_t type_type, const struct flat_table *type,
				struct ArrowSchema *schema)
{
	char text[FORMAT_BYTES];
	const char *format = text;
	struct parameters p;

	if (!read_parameters(type_type, type, &p))
		return outside(r);
	switch (type_type) {
	case TYPE_TIMESTAMP:
		return format_timestamp(r, type, &p, schema);
	case TYPE_DECIMAL:
		if (p.third != 32 && p.third != 64 && p.third != 128 && p.third != 256)
			return unknown(r);
		if (p.third == 128)
			(void)snprintf(text, sizeof text, "d:%d,%d", p.first, p.second);
		else
			(void)snprintf(text, sizeof text, "d:%d,%d,%d", p.first, p.second, p.third);
		break;
	case TYPE_FIXED_BINARY:
	case TYPE_FIXED_LIST:
		if (p.first < 0)
			return unknown(r);
		(void)snprintf(text, sizeof text, "%s:%d", type_type == TYPE_FIXED_LIST ? "+w" : "w", p.first);
		break;
	default:
		format = plain_format(type_type, &p);
	}
	if (!format)
		return unknown(r);
	if (type_type == TYPE_MAP && p.first)
		schema->flags |= ARROW_FLAG_MAP_KEYS_SORTED;
	schema->format = copy_text(format, strlen(format));
	return schema->format ? IPC_READ : IPC_NO_MEMORY;
}

/* --- metadata: pairs of a key and a value, each a length and its bytes, behind their number ------- */

static bool pair_text(const struct flat *in, const struct flat_vector *pairs, uint64_t i, unsigned index,
		      const char **text, uint64_t *length)
{
	struct flat_table pair;

	return flat_listed(in, pairs, i, &pair) && flat_text(&pair, index, text, length);
}

static char *add_text(char *to, const char *text, uint64_t length)
{
	int32_t prefix = (int32_t)length;

	memcpy(to, &prefix, sizeof prefix);
	if (length)
		memcpy(to + sizeof prefix, text, length);
	return to + sizeof prefix + length;
}

static enum ipc_read set_metadata(struct reading *r, const struct flat_table *table, unsigned index,
				  struct ArrowSchema *schema)
{
	const struct flat *in = table->in;
	struct flat_vector pairs;
	uint64_t bytes = sizeof(int32_t);
	int32_t count;
	const char *text;
	uint64_t length;
	char *to;

	if (!flat_elements(table, index, 4, 4, &pairs))
		return outside(r);
	if (pairs.count == 0)
		return IPC_READ;
	for (uint64_t i = 0; i < 2 * pairs.count; i++) {
		if (!pair_text(in, &pairs, i / 2, i % 2 ? PAIR_VALUE : PAIR_KEY, &text, &length))
			return outside(r);
		bytes += sizeof(int32_t) + length;
		if (bytes > r->bytes_left)
			return repeats(r);
	}
	r->bytes_left -= bytes;
	to = malloc(bytes);
	if (!to)
		return IPC_NO_MEMORY;
	schema->metadata = to;
	count = (int32_t)pairs.count;
	memcpy(to, &count, sizeof count);
	to += sizeof count;
	for (uint64_t i = 0; i < 2 * pairs.count; i++) {
		(void)pair_text(in, &pairs, i / 2, i % 2 ? PAIR_VALUE : PAIR_KEY, &text, &length);
		to = add_text(to, text, length);
	}
	return IPC_READ;
}

/* --- fields ----------------------------------------------------------------------------------- */

static void release_schema(struct ArrowSchema *schema)
{
	for (int64_t i = 0; i < schema->n_children; i++) {
		if (schema->children[i]->release)
			schema->children[i]->release(schema->children[i]);
	}
	if (schema->children)
		free(schema->children[0]);
	free((void *)schema->children);
	free((void *)schema->format);
	free((void *)schema->name);
	free((void *)schema->metadata);
	schema->release = NULL;
}

static enum ipc_read set_field(struct reading *r, const struct flat_table *field, int levels,
			       struct ArrowSchema *schema);

/* The children are in one piece of memory, which begins with the first one. */
static enum ipc_read set_children(struct reading *r, const struct flat_table *table, unsigned index, int levels,
				  struct ArrowSchema *schema)
{
	struct flat_vector fields;
	struct ArrowSchema *children;

	if (!flat_elements(table, index, 4, 4, &fields))
		return outside(r);
	if (fields.count == 0)
		return IPC_READ;
	if (levels == 0 || fields.count > r->fields_left)
		return repeats(r);
	r->fields_left -= fields.count;
	children = calloc(fields.count, sizeof *children);
	schema->children = malloc(fields.count * sizeof *schema->children);
	if (!children || !schema->children) {
		free(children);
		free((void *)schema->children);
		schema->children = NULL;
		return IPC_NO_MEMORY;
	}
	schema->n_children = (int64_t)fields.count;
	for (uint64_t i = 0; i < fields.count; i++)
		schema->children[i] = &children[i];
	for (uint64_t i = 0; i < fields.count; i++) {
		struct flat_table field;
		enum ipc_read read = flat_listed(table->in, &fields, i, &field)
					 ? set_field(r, &field, levels - 1, &children[i])
					 : outside(r);

		if (read != IPC_READ)
			return read;
	}
	return IPC_READ;
}

static enum ipc_read set_name(struct reading *r, const struct flat_table *field, struct ArrowSchema *schema)
{
	const char *name;
	uint64_t length;

	if (!flat_text(field, FIELD_NAME, &name, &length))
		return outside(r);
	if (!spend(r, length))
		return repeats(r);
	if (name && strlen(name) != length)
		return ipc_wrong(r->frame, IPC_FOREIGN, "the name of a column has a zero in it");
	schema->name = copy_text(name ? name : "", length);
	return schema->name ? IPC_READ : IPC_NO_MEMORY;
}

static enum ipc_read set_field(struct reading *r, const struct flat_table *field, int levels,
			       struct ArrowSchema *schema)
{
	struct flat_table type;
	struct flat_table dictionary;
	uint8_t type_type = 0;
	int32_t nullable;
	enum ipc_read read;

	schema->release = release_schema;
	if (!read_flag(field, FIELD_NULLABLE, &nullable) ||
	    !flat_number(field, FIELD_TYPE_TYPE, sizeof type_type, &type_type) ||
	    !flat_inner(field, FIELD_TYPE, &type) || !flat_inner(field, FIELD_DICTIONARY, &dictionary))
		return outside(r);
	if (dictionary.at || type.at == 0)
		return unknown(r);
	schema->flags = nullable ? ARROW_FLAG_NULLABLE : 0;
	read = set_name(r, field, schema);
	if (read == IPC_READ)
		read = set_format(r, type_type, &type, schema);
	if (read == IPC_READ)
		read = set_metadata(r, field, FIELD_METADATA, schema);
	return read == IPC_READ ? set_children(r, field, FIELD_CHILDREN, levels, schema) : read;
}

static enum ipc_read set_root(struct reading *r, struct ArrowSchema *root)
{
	const struct flat_table *schema = &r->frame->header;
	int32_t big_endian = 0;
	enum ipc_read read;

	root->format = copy_text("+s", 2);
	root->name = copy_text("", 0);
	if (!root->format || !root->name)
		return IPC_NO_MEMORY;
	if (!read_short(schema, SCHEMA_ENDIANNESS, &big_endian))
		return outside(r);
	if (big_endian)
		return ipc_wrong(r->frame, IPC_FOREIGN, "its numbers are big-endian");
	read = set_metadata(r, schema, SCHEMA_METADATA, root);
	return read == IPC_READ ? set_children(r, schema, SCHEMA_FIELDS, IPC_MOST_LEVELS, root) : read;
}

/* Reads the schema at the beginning of a message of `bytes` bytes; the caller releases it. `frame` has its
 * end, or the reason why it cannot be read. */
enum ipc_read ipc_schema(const uint8_t *message, uint64_t bytes, struct ArrowSchema *root, struct ipc_frame *frame)
{
	enum ipc_read read = ipc_frame_open(frame, message, bytes, MOST_METADATA, IPC_HEADER_SCHEMA);

	/* A field is a table, and an offset to it. Metadata has no more bytes here than there, texts that a
	 * writer shares have. */
	struct reading r = {
	    .frame = frame,
	    .fields_left = frame->metadata.size / 8,
	    .bytes_left = 4 * frame->metadata.size,
	};

	*root = (struct ArrowSchema){.release = release_schema};
	if (read == IPC_READ)
		read = set_root(&r, root);
	if (read != IPC_READ)
		release_schema(root);
	ipc_frame_close(frame);
	return read;
}
